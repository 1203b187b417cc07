"""Filters as conditions: which are taken, and that they leave out nothing that Spark would keep."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from reliable_mq.reconcile.source_filters import Condition, conditions_of, filtered

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("told", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("content", pa.binary()),
    ]
)
TOPIC, OFFSET = ("topic",), ("offset",)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (EqualTo(TOPIC, "a"), Condition("topic", "=", "a")),
        (In(TOPIC, ("a", "b")), Condition("topic", "in", ("a", "b"))),
        (StringStartsWith(TOPIC, "a"), Condition("topic", "starts with", "a")),
        (LessThan(OFFSET, 7), Condition("offset", "<", 7)),
        (LessThanOrEqual(OFFSET, 7), Condition("offset", "<=", 7)),
        (GreaterThan(OFFSET, 7), Condition("offset", ">", 7)),
        (GreaterThanOrEqual(("at",), NOON), Condition("at", ">=", NOON)),
        (EqualTo(("told",), True), Condition("told", "=", True)),
        (IsNull(TOPIC), Condition("topic", "is null")),
        (IsNotNull(TOPIC), Condition("topic", "is not null")),
    ],
)
def test_a_filter_on_a_column_is_a_condition(given: Filter, taken: Condition) -> None:
    assert conditions_of([given], SCHEMA) == (taken,)


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("other",), "a"),
        EqualTo(("topic", "part"), "a"),
        EqualTo(TOPIC, 1),
        EqualTo(TOPIC, "a\0b"),
        EqualTo(OFFSET, True),
        EqualTo(OFFSET, 1.5),
        EqualTo(("told",), 1),
        EqualTo(("content",), b"a"),
        GreaterThan(("at",), datetime(2026, 11, 20)),  # noqa: DTZ001 - of which zone?
        In(TOPIC, ("a", None)),
        In(TOPIC, ()),
        EqualNullSafe(TOPIC, "a"),
        StringContains(TOPIC, "a"),
        Not(EqualTo(TOPIC, "a")),
    ],
)
def test_what_is_not_understood_is_left_to_spark(given: Filter) -> None:
    assert conditions_of([given], SCHEMA) == ()


ROWS = [
    {"topic": "a", "offset": 1, "told": True},
    {"topic": "ab", "offset": 2, "told": False},
    {"topic": None, "offset": None, "told": None},
]


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ((), {0, 1, 2}),
        ((Condition("topic", "=", "a"),), {0}),
        ((Condition("topic", "in", ("a", "ab")),), {0, 1}),
        ((Condition("topic", "starts with", "ab"),), {1}),
        ((Condition("offset", "<", 2),), {0}),
        ((Condition("offset", "<=", 2),), {0, 1}),
        ((Condition("offset", ">", 1),), {1}),
        ((Condition("offset", ">=", 1),), {0, 1}),
        ((Condition("topic", "is null"),), {2}),
        ((Condition("topic", "is not null"), Condition("told", "=", True)), {0}),
        ((Condition("elsewhere", "=", "a"),), {0, 1, 2}),
    ],
)
def test_rows_for_which_all_conditions_hold_are_kept(
    conditions: tuple[Condition, ...], kept: set[int]
) -> None:
    fields = [SCHEMA.field(name) for name in ("topic", "offset", "told")]
    batch = pa.RecordBatch.from_pylist(ROWS, schema=pa.schema(fields))

    found: list[dict[str, Any]] = filtered(batch, conditions).to_pylist()

    assert found == [ROWS[number] for number in sorted(kept)]
