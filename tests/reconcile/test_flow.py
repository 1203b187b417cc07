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


def one(topic: str | None = "a", *, is_lead: bool = True, **columns: Any) -> dict[str, Any]:
    """Return a verdict with some of its times and latencies."""
    return dict.fromkeys(SCHEMA.names) | {"topic": topic, "is_lead": is_lead} | columns


def flow_of(*verdicts: dict[str, Any]) -> Flow:
    flow = Flow()
    flow.add(pa.Table.from_pylist(list(verdicts), SCHEMA))
    return flow


EPOCH = NOW - timedelta(seconds=NOW.timestamp())


def test_a_latency_is_counted_in_one_of_four_buckets_for_each_doubling() -> None:
    """Below a millisecond counts as one. A bucket has its start, and not that of the next one."""
    told = [-5, 0, 1, 2, 3, 4, 1_023, 1_024, 1_025, 2**40]
    flow = flow_of(*(one(consumed_ms=each) for each in told))
    counts = {0: 3, 4: 1, 6: 1, 8: 1, 39: 1, 40: 2, 160: 1}
    assert flow.latencies == {("commit to effect", "a"): Counter(counts)}
    assert [bucket_start_ms(bucket) for bucket in (0, 4, 8, 40)] == [1, 2, 4, 1_024]
    assert bucket_start_ms(1) == pytest.approx(1.189, abs=0.001)


def test_what_is_of_a_message_is_counted_at_its_first_group_only() -> None:
    """Storing and delays are of messages. Effects are of groups."""
    row: dict[str, Any] = {way.column: 8 for way in WAYS.values()}
    row |= {way.column: EPOCH + timedelta(seconds=7.9) for way in ARRIVALS.values()}
    flow = flow_of(one(**row), one(is_lead=False, **row), one(None, is_lead=False, effect_ms=1))
    counts = {"commit to broker": 1, "delay to delivery": 1}
    counts |= {"broker to effect": 2, "commit to effect": 2}
    expected = {(name, "a"): Counter({12: count}) for name, count in counts.items()}
    assert flow.latencies == expected | {("broker to effect", ""): Counter({0: 1})}
    assert flow.arrivals == {
        "committed": Counter({7: 1}),
        "stored": Counter({7: 1}),
        "consumed": Counter({7: 2}),
    }


def test_the_sum_of_all_topics_comes_first_and_has_those_without_a_topic() -> None:
    flow = flow_of(one("b", stored_ms=1), one("a", stored_ms=1), one(None, stored_ms=4))
    assert list(flow.by_topic("commit to broker")) == [
        ("", Counter({0: 2, 8: 1})),
        ("a", Counter({0: 1})),
        ("b", Counter({0: 1})),
    ]
    assert list(flow.by_topic("commit to effect")) == []


def stored_at(seconds: list[int]) -> Flow:
    return flow_of(*(one(record_store_time=EPOCH + timedelta(seconds=each)) for each in seconds))


@pytest.mark.parametrize(
    ("count", "apart", "slot_seconds", "slots"),
    [
        (SLOTS_MAX, 1, 1, SLOTS_MAX),
        (SLOTS_MAX + 1, 1, 5, 401),
        (SLOTS_MAX + 1, 5, 15, 667),
        (SLOTS_MAX + 1, 400 * 86_400, 31_449_600, SLOTS_MAX + 1),
    ],
)
def test_slots_become_longer_when_there_is_one_too_many(
    count: int, apart: int, slot_seconds: int, slots: int
) -> None:
    """The times are counted by the start of their slot. A slot is never longer than a year."""
    times = [number * apart for number in range(count)] + [0]
    whole, added = stored_at(times), Flow()
    for part in (times[: count // 2], times[count // 2 :]):
        added.add_data(stored_at(part).to_data())
    for flow in (whole, added):
        assert (flow.slot_seconds, len(flow.arrivals["stored"])) == (slot_seconds, slots)
        assert set(flow.arrivals["stored"]) == {
            each // slot_seconds * slot_seconds for each in times
        }
        assert flow.arrivals["stored"].total() == count + 1
        assert flow.arrivals["stored"][0] == sum(each < slot_seconds for each in times)
        assert flow.invariants()


def test_what_is_added_to_longer_slots_is_counted_in_them() -> None:
    for parts in ((list(range(2_001)), [7, 9, 11]), ([7, 9, 11], list(range(2_001)))):
        added = Flow()
        for part in parts:
            added.add_data(stored_at(part).to_data())
        assert added.slot_seconds == 5
        assert [added.arrivals["stored"][slot] for slot in (0, 5, 10)] == [5, 7, 6]
        assert added.latencies == {}


@pytest.mark.parametrize(
    ("times", "bars", "step"),
    [
        ([100, 149], 50, 1),
        ([100, 150], 50, 5),
        ([100, 349], 50, 5),
        ([100, 350], 50, 15),
        ([100], 1, 1),
        ([0, 10**9], 2, 31_449_600),
    ],
)
def test_arrivals_are_told_in_the_shortest_slots_that_make_so_few_bars(
    times: list[int], bars: int, step: int
) -> None:
    told, arrived = stored_at(times).arrived(bars)
    assert told == step
    assert arrived["stored"] == Counter(each // step * step for each in times)
    assert arrived["committed"] == Counter()


def test_arrivals_are_told_in_no_shorter_slots_than_they_are_counted_in() -> None:
    assert stored_at(list(range(2_001))).arrived(10_000)[0] == 5
