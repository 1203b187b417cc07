"""Latencies and arrivals: counted in parts they are what they are at once, and stay few."""

import random
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reconcile.ledgers import NOW

from reliable_mq.reconcile.judgement.flow import ARRIVALS, SLOT_SECONDS, SLOTS_MAX, WAYS, Flow
from reliable_mq.reconcile.judgement.latency import bucket_start_ms, quantile_ms

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("is_lead", pa.bool_()),
        *((way.column, pa.int64()) for way in WAYS.values()),
        *((way.column, _TIME) for way in ARRIVALS.values()),
    ]
)


def rows(seed: int, count: int, span_seconds: float = 3_000.0) -> pa.Table:
    """Make verdicts of which some lack a time, a topic or a latency."""
    rng = random.Random(seed)

    def row() -> dict[str, Any]:
        made: dict[str, Any] = {
            way.column: rng.choice((None, -5, rng.randrange(1, 10**7))) for way in WAYS.values()
        }
        for way in ARRIVALS.values():
            moment = NOW + timedelta(seconds=rng.random() * span_seconds)
            made[way.column] = rng.choice((None, moment))
        return made | {"topic": rng.choice((None, "a", "b")), "is_lead": rng.random() < 0.7}

    return pa.Table.from_pylist([row() for _ in range(count)], SCHEMA)


@pytest.mark.parametrize("name", WAYS)
def test_latencies_are_counted_by_topic_as_sql_counts_them(name: str) -> None:
    verdicts, way = rows(1, 500), WAYS[name]
    flow = Flow()
    flow.add(verdicts)

    counted = duckdb.connect().execute(
        f"SELECT coalesce(topic, ''), CAST(floor(log2(greatest({way.column}, 1)) * 4) AS INT) b,"
        f" count(*) FROM verdicts WHERE {way.column} IS NOT NULL"
        f" AND (is_lead OR {not way.is_messages}) GROUP BY ALL"
    )
    expected: dict[str, Counter[int]] = {}
    for topic, bucket, count in counted.fetchall():
        expected.setdefault(topic, Counter())[bucket] = count
    known = {topic: counts for (one, topic), counts in flow.latencies.items() if one == name}
    assert known == expected
    assert dict(flow.by_topic(name))[""] == sum(expected.values(), Counter())


@settings(deadline=None, max_examples=15)
@given(cuts=st.lists(st.integers(0, 200), max_size=4), seed=st.integers(0, 5))
def test_parts_add_up_to_the_whole_in_any_order(cuts: list[int], seed: int) -> None:
    verdicts = rows(seed, 200, span_seconds=10.0 ** (seed + 2))
    whole, added = Flow(), Flow()
    whole.add(verdicts)
    edges = [0, *sorted(cuts), 200]
    for begin, end in reversed(list(pairwise(edges))):
        part = Flow()
        part.add(verdicts.slice(begin, end - begin))
        added.add_data(part.to_data())

    assert added.latencies == whole.latencies
    assert added.arrived(50) == whole.arrived(50)
    assert added.invariants()


@pytest.mark.parametrize("span_seconds", [1.0, 5_000.0, 40_000_000.0])
def test_slots_stay_few_however_long_the_time(span_seconds: float) -> None:
    verdicts = rows(3, 4_000, span_seconds)
    flow = Flow()
    flow.add(verdicts)

    assert flow.invariants()
    step, arrived = flow.arrived(96)
    assert step in SLOT_SECONDS
    for name, way in ARRIVALS.items():
        known = verdicts.filter(verdicts["is_lead"]) if way.is_messages else verdicts
        assert arrived[name].total() == known.num_rows - known[way.column].null_count
        assert len(arrived[name]) <= 97
        assert len(flow.arrivals[name]) <= SLOTS_MAX


def test_each_slot_length_is_made_of_whole_slots_of_the_one_before() -> None:
    assert all(longer % shorter == 0 for shorter, longer in pairwise(SLOT_SECONDS))


def test_slots_are_as_long_as_people_divide_time() -> None:
    minute, hour, day = 60, 3_600, 86_400
    assert (
        *(1, 5, 15, minute, 5 * minute, 15 * minute),
        *(hour, 6 * hour, day, 7 * day, 28 * day, 13 * 28 * day),
    ) == SLOT_SECONDS


def test_nothing_counted_is_nothing_told() -> None:
    flow = Flow()
    flow.add(SCHEMA.empty_table())

    assert list(flow.by_topic("commit to broker")) == []
    assert flow.arrived(10) == (1, {name: Counter() for name in ARRIVALS})


def test_a_quantile_is_at_most_a_bucket_above_the_truth() -> None:
    counts = Counter({10: 90, 20: 9, 30: 1})

    assert quantile_ms(counts, 0.9) == bucket_start_ms(11)
    assert quantile_ms(counts, 0.99) == bucket_start_ms(21)
    assert quantile_ms(counts, 1.0) == bucket_start_ms(31)
    assert quantile_ms({}, 0.5) is None
