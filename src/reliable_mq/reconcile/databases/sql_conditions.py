"""Make SQL conditions on the rows of a ledger: the range of a partition, the filters of a query."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import ColumnElement, String, Table, and_, collate, func, not_, or_, true

from reliable_mq.database.sql_consume_log_table import consumed_rows, received_rows
from reliable_mq.database.sql_stub_table import parked_rows, settled_rows, waiting_rows
from reliable_mq.database.sql_types import has_no_id_time
from reliable_mq.reconcile.source_filters import (
    AMONG,
    AT_LEAST,
    AT_MOST,
    EQUAL,
    LESS,
    MORE,
    NOT_NULL,
    NULL,
    STARTS_WITH,
    Condition,
)

SETTLED, WAITING, PARKED = "settled", "waiting", "parked"
CONSUMED, RECEIVED = "consumed", "received"
TIMED, UNTIMED = "timed", "untimed"


def _received(table: Table) -> ColumnElement[bool]:
    # The second condition follows from the first one. MySQL's index needs it.
    return and_(received_rows(table), table.c.consume_date.is_(None))


# Each kind of rows has a partial index, except in MySQL.
_KINDS: dict[str, Callable[[Table], ColumnElement[bool]]] = {
    SETTLED: settled_rows,
    WAITING: waiting_rows,
    PARKED: parked_rows,
    CONSUMED: consumed_rows,
    RECEIVED: _received,
    TIMED: lambda table: not_(has_no_id_time(table.c.message_id)),
    UNTIMED: lambda table: has_no_id_time(table.c.message_id),
}


@dataclass(frozen=True)
class KeyRange:
    """Rows whose key is in the range `low` … `high`, end excluded. None: no limit.

    The database compares the keys, so ranges do not overlap and have no gap, with any collation.

    `kind`: only rows of this kind. The kind UNTIMED means rows that may be in the time range of the
    ids `low` … `high`: our ids in another spelling, and all ids without a time. The time of a
    message without a time in its id is the first trace in any ledger, which one ledger alone does
    not know.
    """

    column: str | None = None
    low: Any = None
    high: Any = None
    kind: str | None = None


EVERYTHING = KeyRange()


def in_range(table: Table, part: KeyRange) -> ColumnElement[bool]:
    """Return the condition that a row is in a range."""
    held = [] if part.kind is None else [_KINDS[part.kind](table)]
    if part.column is None:
        return and_(true(), *held)
    if part.kind == UNTIMED:
        return and_(*held, in_window(table, part.low, part.high))
    return and_(true(), *held, _between(table.c[part.column], part.low, part.high))


def in_window(table: Table, low: str | None, high: str | None) -> ColumnElement[bool]:
    """Return the condition that, by its id in any spelling, a message may be in a time range."""
    key: ColumnElement[str] = table.c.message_id
    return or_(_is_no_uuid(key), _between(func.upper(key), low, high))


def _between(key: ColumnElement[Any], low: Any, high: Any) -> ColumnElement[bool]:
    edges = [key >= low] if low is not None else []
    edges += [key < high] if high is not None else []
    return and_(true(), *edges)


def _is_no_uuid(message_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that an id, in any spelling, does not begin with a time."""
    return or_(
        func.length(message_id) != 32,
        func.substr(message_id, 13, 1) != "7",
        func.upper(func.substr(message_id, 17, 1)).not_in(("8", "9", "A", "B")),
    )


def clause(table: Table, condition: Condition, family: str) -> ColumnElement[bool]:
    """Return a condition as SQL for a family of databases (`sql_types.dialect_family`).

    Text is compared by code points, as Spark does. Our columns in SQLite and MySQL are compared so
    anyway; PostgreSQL needs a COLLATE clause.
    """
    column: ColumnElement[Any] = table.c[condition.column]
    value = condition.value
    if condition.operator == NULL:
        return column.is_(None)
    if condition.operator == NOT_NULL:
        return column.is_not(None)
    if condition.operator == AMONG:
        return column.in_(value)
    if condition.operator == STARTS_WITH:
        column = func.substr(column, 1, len(value))
    elif condition.operator != EQUAL:
        column = _by_code_points(column, family)
    return cast("ColumnElement[bool]", _COMPARED[condition.operator](column, value))


_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    EQUAL: operator.eq,
    STARTS_WITH: operator.eq,
    LESS: operator.lt,
    AT_MOST: operator.le,
    MORE: operator.gt,
    AT_LEAST: operator.ge,
}


def _by_code_points(column: ColumnElement[Any], family: str) -> ColumnElement[Any]:
    is_text = isinstance(getattr(column.type, "impl_instance", column.type), String)
    return collate(column, "C") if is_text and family == "postgresql" else column
