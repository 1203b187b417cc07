"""Partitions of a ledger, found from the database itself: ranges of keys with about as many rows.

Receives a ledger and, perhaps, a window; hands on ranges, none of which overlap and which together
hold every row of the window. What it asks costs what the window costs, not what the table does.

- A whole table with a number that grows is cut into ranges of equal width.
- A whole table of message ids is cut where a sample of PostgreSQL's pages says; elsewhere where the
  index on them says, which is read once.
- A window of ids is a range of the index on them, and the ids that tell no time, which have an
  index of their own.
- What was changed is what was settled or consumed then, by the index on that time, and perhaps
  what is open: each kind of it has an index.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Table,
    bindparam,
    func,
    select,
    tablesample,
    text,
)

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.databases.ledger_columns import (
    AUDIT,
    CONSUME_LOG,
    ESCALATION,
    FINDING,
    KEY,
    RUN,
    STUB,
    TOLD,
    table_of,
)
from reliable_mq.reconcile.databases.sql_conditions import (
    CONSUMED,
    EVERYTHING,
    PARKED,
    RECEIVED,
    SETTLED,
    TIMED,
    UNTIMED,
    WAITING,
    KeyRange,
    in_range,
)
from reliable_mq.reconcile.databases.sql_connection import connected

ROWS_PER_PARTITION = 250_000
PARTITIONS_MAX = 1_000
_SAMPLED_PAGES = 1_000

_NUMBER, _ID, _RUN = "seq", "message_id", "run_id"
_KEYS = {
    STUB: _NUMBER,
    ESCALATION: _NUMBER,
    AUDIT: _NUMBER,
    CONSUME_LOG: _ID,
    TOLD: _ID,
    KEY: _ID,
    RUN: _RUN,
    FINDING: _RUN,
}


@dataclass(frozen=True)
class IdWindow:
    """Message ids of a time window, `low` .. `high`, the end excluded; None is open.

    Only ids that begin with their time (`message.new_message_id`) can be told apart by it. The rows
    of all others are in every window: what decides about such a message is the first trace that any
    ledger has of it, and no ledger can know that alone.
    """

    low: str | None = None
    high: str | None = None


@dataclass(frozen=True)
class ChangeWindow:
    """Rows that were changed in a time, `since` .. `until`, the end excluded; None is open.

    Args:
        with_open: also everything that is open (unsettled stubs, received logs), whenever it was
            changed. Without it: open stubs that were changed then, and no received logs, which keep
            no time of a change.
    """

    since: datetime | None = None
    until: datetime | None = None
    with_open: bool = False


# Few rows, or, of what waits, rows whose index is in another order.
_UNCUT = (UNTIMED, WAITING, PARKED)

# What was changed of a ledger: kinds of rows and the time that their index is ordered by; and the
# kinds that are open, with the time of their change, if they keep one.
_CHANGED: dict[str, tuple[tuple[str | None, str], ...]] = {
    STUB: ((SETTLED, "update_date"),),
    CONSUME_LOG: ((CONSUMED, "consume_date"),),
    TOLD: ((None, "update_date"),),
}
_OPEN: dict[str, tuple[tuple[str, str | None], ...]] = {
    STUB: ((WAITING, "update_date"), (PARKED, "update_date")),
    CONSUME_LOG: ((RECEIVED, None),),
    TOLD: (),
}


def key_ranges(
    url: str,
    name: str,
    prefix: str,
    window: IdWindow | ChangeWindow,
    rows_per_partition: int = ROWS_PER_PARTITION,
) -> list[KeyRange]:
    """Cut a window of a table into ranges with about `rows_per_partition` rows, 1,000 at most.

    Raises:
        ConfigurationError: the ledger is not one whose rows keep when they were changed.
        sqlalchemy.exc.SQLAlchemyError: the database failed.
    """
    table = table_of(name, prefix)
    found = []
    with connected(url) as connection:
        for part in whole_ranges(name, window):
            if part == EVERYTHING:
                return _of_all(connection, table, table.c[_KEYS[name]], rows_per_partition)
            is_cut = part.column is not None and part.kind not in _UNCUT
            found += _cut(connection, table, part, rows_per_partition) if is_cut else [part]
    return found


def whole_ranges(name: str, window: IdWindow | ChangeWindow) -> list[KeyRange]:
    """Return the ranges that together are a window, one for each index that has some of it.

    Raises:
        ConfigurationError: the ledger is not one whose rows keep when they were changed.
    """
    if isinstance(window, IdWindow):
        if (window.low is None and window.high is None) or name == RUN:
            return [EVERYTHING]
        return [KeyRange(_ID, window.low, window.high, kind) for kind in (TIMED, UNTIMED)]
    if name not in _CHANGED:
        raise ConfigurationError(
            f"what was changed can be read of {', '.join(_CHANGED)}, not of {name}"
        )
    kinds = list(_CHANGED[name])
    if not window.with_open:
        kinds += [(kind, at) for kind, at in _OPEN[name] if at is not None]
    found = [KeyRange(at, window.since, window.until, kind) for kind, at in kinds]
    return [*found, *(KeyRange(kind=kind) for kind, _ in _OPEN[name] if window.with_open)]


def _of_all(
    connection: Connection, table: Table, key: ColumnElement[Any], rows: int
) -> list[KeyRange]:
    column = str(key.key)
    if column == _NUMBER:
        low, high = connection.execute(select(func.min(key), func.max(key))).one()
        cuts = [] if low is None else _widths(low, high, rows)
    elif connection.dialect.name == "postgresql":
        cuts = _sampled(connection, table, column, rows)
    else:
        cuts = _places(connection, table, column, rows)
    return _ranges(KeyRange(column), cuts)


def _widths(low: int, high: int, rows: int) -> list[int]:
    """Return the numbers between ranges of equal width."""
    parts = min(max(1, -(-(high - low + 1) // rows)), PARTITIONS_MAX)
    return sorted({low + (high - low + 1) * part // parts for part in range(1, parts)} - {low})


def _cut(connection: Connection, table: Table, part: KeyRange, rows: int) -> list[KeyRange]:
    """Cut a range by the index on its key, which is read from its low to its high end."""
    # Of what follows from the key alone the index need not know; the rest names the index.
    counted = KeyRange(part.column, part.low, part.high, None if part.kind == TIMED else part.kind)
    return _ranges(part, _places(connection, table, str(part.column), rows, counted))


def _ranges(whole: KeyRange, cuts: Iterable[Any]) -> list[KeyRange]:
    edges = [whole.low, *cuts, whole.high]
    return [KeyRange(whole.column, low, high, whole.kind) for low, high in pairwise(edges)]


def _places(
    connection: Connection,
    table: FromClause,
    column: str,
    rows: int,
    counted: KeyRange | None = None,
) -> list[Any]:
    """Return every `rows`-th key in order, each once, the first excepted."""
    key = table.c[column]
    numbered = select(key.label("key"), func.row_number().over(order_by=key).label("place"))
    if counted is not None and isinstance(table, Table):
        numbered = numbered.where(in_range(table, counted))
    numbers = numbered.subquery()
    at = numbers.c.place % bindparam("rows", rows) == 0
    keys = connection.scalars(select(numbers.c.key).where(at).order_by(numbers.c.place))
    return _thinned(list(dict.fromkeys(keys)))


def _thinned(cuts: Sequence[Any]) -> list[Any]:
    """Leave out cuts, evenly, where they would make too many ranges."""
    step = -(-len(cuts) // (PARTITIONS_MAX - 1)) if cuts else 1
    return list(cuts[step - 1 :: step])


def _sampled(connection: Connection, table: Table, column: str, rows: int) -> list[Any]:
    """Return cuts by a sample of the table's pages; of a small table that is all of them."""
    pages = connection.scalar(_PAGES, {"name": table.name}) or 1
    share = min(1.0, _SAMPLED_PAGES / pages)
    sample = tablesample(table, func.system(share * 100), name="sample")
    return _places(connection, sample, column, max(1, round(rows * share)))


# The pages of a table, or of all partitions of one.
_PAGES = text(
    "SELECT (pg_relation_size(each.oid) + coalesce((SELECT sum(pg_relation_size(relid))"
    " FROM pg_partition_tree(each.oid)), 0)) / current_setting('block_size')::int"
    " FROM (SELECT to_regclass(:name) AS oid) each"
)
