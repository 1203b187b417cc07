"""Convert the filters of a Spark query to conditions that a data source applies itself. Pure.

Receives the filters that Spark pushes down. Returns conditions of a closed list, and applies them
to Arrow batches. Spark applies all filters again, because a database compares by its own
collations. So a condition may keep too many rows, but must never drop a row that Spark would keep.

A filter gives no condition if it names no column of the source, or if its value does not have the
column's type. Spark never pushes down OR or functions of columns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

EQUAL, LESS, AT_MOST, MORE, AT_LEAST = "=", "<", "<=", ">", ">="
AMONG, STARTS_WITH, NULL, NOT_NULL = "in", "starts with", "is null", "is not null"

_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: EQUAL,
    LessThan: LESS,
    LessThanOrEqual: AT_MOST,
    GreaterThan: MORE,
    GreaterThanOrEqual: AT_LEAST,
    In: AMONG,
    StringStartsWith: STARTS_WITH,
}
_NULL_TESTS: dict[type[Filter], str] = {IsNull: NULL, IsNotNull: NOT_NULL}


@dataclass(frozen=True)
class Condition:
    """A condition on one column. `value` is a tuple for `AMONG`, and None for null tests.

    A comparison with NULL is true for no row, as in SQL.
    """

    column: str
    operator: str
    value: Any = None


def conditions_of(filters: Iterable[Filter], schema: pa.Schema) -> tuple[Condition, ...]:
    """Return the conditions of filters that are joined by AND, for columns of `schema`."""
    found = (_condition(each, schema) for each in filters)
    return tuple(condition for condition in found if condition is not None)


def _condition(each: Filter, schema: pa.Schema) -> Condition | None:
    path: Sequence[str] = getattr(each, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    (column,) = path
    if type(each) in _NULL_TESTS:
        return Condition(column, _NULL_TESTS[type(each)])
    operator = _COMPARISONS.get(type(each))
    if operator is None:
        return None
    value = each.value  # type: ignore[attr-defined]  # of those in the table, all have one
    kind = schema.field(column).type
    values = tuple(value) if operator == AMONG else (value,)
    if not values or not all(_fits(single, kind) for single in values):
        return None
    return Condition(column, operator, values if operator == AMONG else value)


def _fits(value: Any, kind: pa.DataType) -> bool:
    if pa.types.is_string(kind):
        return isinstance(value, str) and "\0" not in value  # PostgreSQL has no text with NUL
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool)
    if pa.types.is_timestamp(kind):
        return isinstance(value, datetime) and value.tzinfo is not None
    return False


_APPLIED: Mapping[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    EQUAL: pc.equal,
    LESS: pc.less,
    AT_MOST: pc.less_equal,
    MORE: pc.greater,
    AT_LEAST: pc.greater_equal,
}


def filtered(batch: pa.RecordBatch, conditions: Iterable[Condition]) -> pa.RecordBatch:
    """Return the rows of a batch for which all conditions hold. Unknown columns are ignored."""
    masks = [
        _mask(batch.column(each.column), each)
        for each in conditions
        if each.column in batch.schema.names
    ]
    return batch.filter(reduce(pc.and_kleene, masks)) if masks else batch


def _mask(column: pa.Array, condition: Condition) -> pa.Array:
    if condition.operator == NULL:
        return column.is_null()
    if condition.operator == NOT_NULL:
        return column.is_valid()
    if condition.operator == AMONG:
        wanted = pa.array(condition.value, type=column.type)
        return pc.is_in(column, value_set=wanted)
    if condition.operator == STARTS_WITH:
        return pc.starts_with(column, pattern=condition.value)
    return _APPLIED[condition.operator](column, pa.scalar(condition.value, type=column.type))
