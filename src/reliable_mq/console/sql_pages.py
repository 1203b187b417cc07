"""Reads pages of a table by its key: each page begins behind the last row of the one before.

A cursor is the key of that row, as JSON. So a page is as quick at the end of a list as at its
beginning, and rows that come meanwhile move no other row. A filter that no index serves looks
through a window of the table: its last row is the cursor of the next page.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Select

from reliable_mq.console.lists import WantedPage, no_place
from reliable_mq.database.sql_windows import before, not_before, read_by_indexes, window_end

MAX_NUMBER = 2**63 - 1

Rows = TypeVar("Rows", bound=Select[Any])


class Window(NamedTuple):
    """The rows that a page looks through, if no index serves the whole filter.

    `columns`: the first columns of the key; an index has the rows of `where` in their order. The
    columns of the key behind them are texts. `is_costly`: see `COSTLY_ROWS`.
    """

    columns: Sequence[Column[Any]]
    where: Sequence[ColumnElement[bool]] = ()
    is_costly: bool = False


def key_of(cursor: str, key: Sequence[Column[Any]]) -> tuple[Any, ...] | None:
    """Return the values of a key that a cursor is; None for "".

    Raises:
        FilterFault: it is no place in this list.
    """
    if not cursor:
        return None
    try:
        values = json.loads(cursor)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or len(values) != len(key):
        raise no_place(cursor)
    for value, column in zip(values, key, strict=True):
        kind = column.type.python_type
        is_number = kind is int and abs(value) <= MAX_NUMBER if type(value) is int else False
        is_text = kind is str and type(value) is str and can_be_stored(value)
        if not (is_number or is_text):
            raise no_place(cursor)
    return tuple(values)


def can_be_stored(text: str) -> bool:
    """Whether a database takes a text: JSON can name halves of characters, which have no bytes."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def where_equal(found: Rows, wanted: WantedPage, **columns: Column[Any]) -> Rows:
    """Return those rows whose columns have the texts that a filter names, by its fields."""
    named = {name: wanted.text(name) for name in columns}
    return found.where(*(columns[name] == text for name, text in named.items() if text))


def page_of(
    connection: Connection,
    wanted: Select[Any],
    key: Sequence[Column[Any]],
    cursor: str,
    limit: int,
    window: Window | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """Return a page of rows, the greatest keys first, and the cursor of the next page.

    With a window, there may be fewer than `limit` rows though more match.

    Args:
        connection: the caller's transaction.
        wanted: the rows without order; selects the columns of the key, too.
        key: a unique key.
        cursor: "": the first page.
        limit: at most this many rows.
        window: which rows are looked through; None: all that match are found by an index.

    Raises:
        FilterFault: the cursor is no place in this list.
    """
    after = key_of(cursor, key)
    place = [] if after is None else [before(key, after)]
    wanted, end = wanted.where(*place), None
    if window is not None:
        wanted = wanted.where(*window.where)
        looked = [*window.where, *_at(window, key, after)]
        end = window_end(connection, window.columns, looked, is_costly=window.is_costly)
        if end is not None:
            read_by_indexes(connection)
            wanted = wanted.where(not_before(window.columns, end))
    wanted = wanted.order_by(*(each.desc() for each in key)).limit(limit + 1)
    rows = [dict(row._mapping) for row in connection.execute(wanted)]
    if len(rows) <= limit:
        rest = [""] * (len(key) - len(end or key))  # all rows of the place were looked at
        return rows, json.dumps([*end, *rest]) if end is not None else ""
    last = rows[limit - 1]
    return rows[:limit], json.dumps([last[each.name] for each in key])


def _at(
    window: Window, key: Sequence[Column[Any]], after: Sequence[Any] | None
) -> list[ColumnElement[bool]]:
    """Return the condition of the rows from a place on; only the window's index is read for it."""
    if after is None:
        return []
    columns = window.columns
    if len(columns) == len(key):
        return [before(key, after)]
    return [columns[0] <= after[0]]


def part_of(
    rows: Sequence[Mapping[str, Any]], cursor: str, limit: int
) -> tuple[list[Mapping[str, Any]], str]:
    """Return a page of rows that are all in memory, and the cursor of the next one: a number.

    Raises:
        FilterFault: the cursor is no number.
    """
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 9):
        raise no_place(cursor)
    begin = int(cursor or 0)
    end = begin + limit
    return list(rows[begin:end]), str(end) if end < len(rows) else ""
