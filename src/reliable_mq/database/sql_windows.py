"""Bounds what a page looks through: a window of rows, and the rows of a span of time.

Receives the columns of an index. A filter that no index serves is applied to the rows of a window
only, so that a page costs the same in a table of any size. The next page begins behind the window.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, func, select, text, tuple_

WINDOW_ROWS = 100_000
"""So many rows are looked through for one page at most."""
COSTLY_ROWS = 30_000
"""So many are, if each costs more: another table is asked for it, or it has a page of its own."""
SLACK = timedelta(minutes=10)
"""A row is written so long after its time at most: the time is when its transaction began."""


def surely_before(moment: datetime) -> datetime:
    """Return a time before which nothing was written that has `moment` or a later time."""
    try:
        return moment - SLACK
    except OverflowError:  # the first minutes that a datetime can be
        return moment


def surely_after(moment: datetime) -> datetime:
    """Return a time by which all was written that has an earlier time than `moment`."""
    try:
        return moment + SLACK
    except OverflowError:  # the last minutes
        return moment


def before(columns: Sequence[Column[Any]], place: Sequence[Any]) -> ColumnElement[bool]:
    """Return the condition: a row's columns sort before a place."""
    is_before: ColumnElement[bool] = tuple_(*columns) < tuple_(*place)
    if len(columns) == 1:
        is_before = columns[0] < place[0]
    return is_before


def not_before(columns: Sequence[Column[Any]], place: Sequence[Any]) -> ColumnElement[bool]:
    """Return the condition: a row's columns are a place, or sort behind it."""
    is_behind: ColumnElement[bool] = tuple_(*columns) >= tuple_(*place)
    if len(columns) == 1:
        is_behind = columns[0] >= place[0]
    return is_behind


def window_rows(*, is_costly: bool) -> int:
    """Return how many rows there are in a window."""
    return COSTLY_ROWS if is_costly else WINDOW_ROWS


def window_end(
    connection: Connection,
    columns: Sequence[Column[Any]],
    where: Sequence[ColumnElement[bool]],
    *,
    is_costly: bool = False,
) -> tuple[Any, ...] | None:
    """Return the place of the last row of a window; None: all rows are in it.

    Args:
        connection: the caller's transaction.
        columns: an index has the rows of `where` in their order; the greatest come first.
        where: which rows are looked through; the index serves it.
        is_costly: whether there are `COSTLY_ROWS` in a window only.
    """
    ordered = select(*columns).where(*where).order_by(*(each.desc() for each in columns))
    ends = ordered.offset(window_rows(is_costly=is_costly) - 1).limit(2)
    found = connection.execute(ends).all()
    return tuple(found[0]) if len(found) > 1 else None


def read_by_indexes(connection: Connection) -> None:
    """Let PostgreSQL read no table from end to end in this transaction, if an index serves.

    It cannot know how small a window of several columns is: it estimates by the first one.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL enable_seqscan = off"))


def times_span(
    connection: Connection,
    seq: Column[int],
    moment: Column[Any],
    since: datetime | None,
    until: datetime | None,
) -> list[ColumnElement[bool]]:
    """Return conditions on `seq` that hold for all rows of a span of time.

    `seq` grows with `moment`, but for `SLACK`. The place of a time is found by halving: no index
    of times is needed. In a small table there are no conditions.

    Args:
        connection: the caller's transaction.
        seq: the number of a row, the primary key.
        moment: when the transaction of the row began.
        since: the begin; None: there is none.
        until: the end; None: there is none.
    """
    if since is None and until is None:
        return []
    first, last = connection.execute(select(func.min(seq), func.max(seq))).one()
    if first is None or last - first < WINDOW_ROWS:
        return []
    found = []
    if since is not None:
        found.append(seq >= _first_at(connection, seq, moment, surely_before(since), (first, last)))
    if until is not None:
        found.append(seq < _first_at(connection, seq, moment, surely_after(until), (first, last)))
    return found


def _first_at(
    connection: Connection,
    seq: Column[int],
    moment: Column[Any],
    wanted: datetime,
    between: tuple[int, int],
) -> int:
    """Return the least `seq` of a row with this time or a later one."""
    low, high = between[0], between[1] + 1
    while low < high:
        middle = (low + high) // 2
        asked = select(seq, moment).where(seq >= middle).order_by(seq).limit(1)
        row = connection.execute(asked).one_or_none()
        if row is None or row[1] >= wanted:
            high = middle
        else:
            low = row[0] + 1
    return low
