"""Cut a ledger into partitions: ranges of keys with about the same number of rows.

Receives a ledger and a window. Returns ranges that do not overlap and that together have every row
of the window. The cost of its queries depends on the size of the window, not of the table.

- A whole table with a growing number as key is cut into ranges of equal width.
- A whole table with message ids as key is cut by a sample of pages on PostgreSQL. On other
  databases it is cut by one read of the index on ids.
- A window of ids is a range of the index on ids, and all ids without a time, which have an index of
  their own.
- A window of changes has the rows that were settled or consumed in it, by the index on that time.
  It may also have all open rows: each kind of them has an index.
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
    """The message ids of a time range: `low` … `high`, end excluded. None: no limit.

    Only ids that begin with their time (`message.new_message_id`) can be selected by time. All
    other rows are in every window. The time of such a message is its first trace in any ledger, and
    one ledger alone does not know it.
    """

    low: str | None = None
    high: str | None = None


@dataclass(frozen=True)
class ChangeWindow:
    """Rows that changed in the time range `since` … `until`, end excluded. None: no limit.

    Args:
        with_open: include all open rows (unsettled stubs, received logs), whenever they changed.
            Without it, open stubs are included if they changed in the range. Received logs are not,
            because they have no time of change.
    """

    since: datetime | None = None
    until: datetime | None = None
    with_open: bool = False


# Kinds that are not cut: they have few rows, or (waiting stubs) their index has another order.
_UNCUT = (UNTIMED, WAITING, PARKED)

# For each ledger, the kinds of changed rows with the time in their index. Below, the kinds of open
# rows with their time of change, if they have one.
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
    """Cut a window of a table into at most about 1,000 ranges of `rows_per_partition` rows.

    Raises:
        ConfigurationError: the window is by change, but the ledger's rows have no time of change.
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
    """Return the ranges that together make a window: one for each index that is needed.

    Raises:
        ConfigurationError: the window is by change, but the ledger's rows have no time of change.
    """
    if isinstance(window, IdWindow):
        if (window.low is None and window.high is None) or name == RUN:
            return [EVERYTHING]
        return [KeyRange(_ID, window.low, window.high, kind) for kind in (TIMED, UNTIMED)]
    if name not in _CHANGED:
        raise ConfigurationError(
            f"a window of changes can be read from {', '.join(_CHANGED)}, not from {name}"
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
    """Return the numbers that separate ranges of equal width."""
    parts = min(max(1, -(-(high - low + 1) // rows)), PARTITIONS_MAX)
    return sorted({low + (high - low + 1) * part // parts for part in range(1, parts)} - {low})


def _cut(connection: Connection, table: Table, part: KeyRange, rows: int) -> list[KeyRange]:
    """Cut a range by its index, which is read from the low to the high end of the range."""
    # The kind TIMED follows from the key, so no condition is needed. Other kinds select an index.
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
    """Return every `rows`-th key in order, without the first one and without repetitions."""
    key = table.c[column]
    numbered = select(key.label("key"), func.row_number().over(order_by=key).label("place"))
    if counted is not None and isinstance(table, Table):
        numbered = numbered.where(in_range(table, counted))
    numbers = numbered.subquery()
    at = numbers.c.place % bindparam("rows", rows) == 0
    keys = connection.scalars(select(numbers.c.key).where(at).order_by(numbers.c.place))
    return _thinned(list(dict.fromkeys(keys)))


def _thinned(cuts: Sequence[Any]) -> list[Any]:
    """Drop cuts evenly, if they would make too many ranges."""
    step = -(-len(cuts) // (PARTITIONS_MAX - 1)) if cuts else 1
    return list(cuts[step - 1 :: step])


def _sampled(connection: Connection, table: Table, column: str, rows: int) -> list[Any]:
    """Return cuts by a sample of the table's pages. For a small table the sample is all pages."""
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
