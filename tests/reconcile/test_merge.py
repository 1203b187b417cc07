"""Sorted streams of rows become one, a batch of each at a time."""

import itertools
from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.reconcile.runs.spark_result import merged

SCHEMA = pa.schema([("id", pa.string()), ("group", pa.string())])
ROWS = st.lists(st.tuples(st.text("abc", max_size=3), st.sampled_from([None, "g", "h"])))


def ordered(rows: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    return sorted(rows, key=lambda row: (row[0], row[1] or "z"))


def stream_of(rows: list[tuple[str, str | None]], size: int) -> list[pa.RecordBatch]:
    parts = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
    return [pa.record_batch(list(zip(*part, strict=True)), schema=SCHEMA) for part in parts]


def values(table: pa.Table) -> list[tuple[str, str | None]]:
    return [(row["id"], row["group"]) for row in table.to_pylist()]


@given(st.lists(ROWS, max_size=4), st.integers(1, 5))
def test_all_rows_of_sorted_streams_come_in_order(
    streams: list[list[tuple[str, str | None]]], size: int
) -> None:
    given_streams = [stream_of(ordered(rows), size) for rows in streams]

    found = [row for table in merged(given_streams, ("id", "group")) for row in values(table)]

    by_id = [row[0] for row in found]
    assert by_id == sorted(by_id)
    assert ordered(found) == ordered(list(itertools.chain(*streams)))


@given(st.lists(ROWS, max_size=4), st.integers(1, 5))
def test_no_row_is_lost_of_streams_that_are_not_sorted(
    streams: list[list[tuple[str, str | None]]], size: int
) -> None:
    given_streams = [stream_of(rows, size) for rows in streams]

    found = [row for table in merged(given_streams, ("id", "group")) for row in values(table)]

    assert ordered(found) == ordered(list(itertools.chain(*streams)))


def test_a_null_goes_behind_every_value() -> None:
    streams = [stream_of([("a", None), ("b", "g")], 9), stream_of([("a", "g"), ("b", None)], 9)]

    (found,) = merged(streams, ("id", "group"))

    assert values(found) == [("a", "g"), ("a", None), ("b", "g"), ("b", None)]


def test_no_more_than_a_batch_of_each_stream_is_taken_ahead() -> None:
    taken = []

    def watched(name: str) -> Iterator[pa.RecordBatch]:
        for number in range(3):
            taken.append(name)
            yield pa.record_batch([[f"{number}"], [name]], schema=SCHEMA)

    next(merged([watched("x"), watched("y")], ("id", "group")))

    assert sorted(taken) == ["x", "y"]
