"""The judgement without Spark: every way into a verdict, a rival, and any order of the events."""

import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reconcile.cases import Cases, every_case, random_cases
from tests.reconcile.judging import events_in, verdicts_of, world_of
from tests.reconcile.ledgers import GRACE, NOW
from tests.reconcile.plain import PlainReconciliation

from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, event_rows, events_of
from reliable_mq.reconcile.judgement.events import EVENTS
from reliable_mq.reconcile.judgement.evidence import sentence
from reliable_mq.reconcile.judgement.judge import judge, judge_traces
from reliable_mq.reconcile.judgement.message_stream import whole_messages
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.judgement.traces import traces_of_rows
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.judgement.world import World
from reliable_mq.reconcile.repairs.repair import ALL_THAT_IS_SAFE

SEEDS = st.integers(0, 10**6)


def test_every_way_into_a_verdict_is_judged_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    expected, store = every_case(url, tmp_path / "store")

    judged = judge(events_in(url, store), world_of(url, store))

    assert verdicts_of(judged) == expected


@pytest.mark.parametrize("status", [-1, 3, 4, 7, 300])
def test_a_status_that_nobody_of_us_wrote_settles_nothing(tmp_path: Path, status: int) -> None:
    cases = Cases(f"sqlite:///{tmp_path}/shop.db", tmp_path / "store")
    unsent, _ = cases.new(ack=Verdict.NOT_SENT)
    cases.stub(unsent, status=status)
    unread, queue = cases.new(payments=Verdict.NOT_CONSUMED)
    cases.stub(unread, "payments", status=status, **cases.send(unread, queue))
    cases.passed("payments", queue)
    consumed, queue = cases.new(payments=Verdict.CONSUMED_NOT_CONFIRMED)
    cases.stub(consumed, "payments", status=status, **cases.send(consumed, queue))
    cases.tables.log(consumed, "payments", 1)
    url, store = cases.write()

    judged = judge(events_in(url, store), world_of(url, store))

    assert verdicts_of(judged) == cases.expected
    for row in judged.to_pylist():
        finding = defaultdict(lambda: None, row)
        assert "status: none that we write" in sentence(finding)
        assert ALL_THAT_IS_SAFE.action_for(finding) is None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_rival_in_plain_python_agrees_on_random_ledgers(tmp_path: Path, seed: int) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    store = random_cases(url, tmp_path / "store", seed, 300)

    judged = judge(events_in(url, store), world_of(url, store))

    rival = PlainReconciliation(url, store, NOW, GRACE).verdicts()
    assert verdicts_of(judged) == rival
    assert len(set(rival.values())) > 10


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, World, pa.Table]:
    """Give random events, their world, and the verdicts on them."""
    folder = tmp_path_factory.mktemp("ledgers")
    url = f"sqlite:///{folder}/shop.db"
    store = random_cases(url, folder / "store", 4, 120)
    events, world = events_in(url, store), world_of(url, store)
    return events, world, judge(events, world)


@settings(deadline=None, max_examples=6)
@given(seed=SEEDS, at_once=st.integers(1, 200), batch_size=st.integers(1, 90))
def test_neither_the_order_of_events_nor_where_they_are_cut_changes_a_verdict(
    ledgers: tuple[pa.Table, World, pa.Table], seed: int, at_once: int, batch_size: int
) -> None:
    """Given events as they come through Spark, sorted by message and in batches of any size, then
    no message is torn, and verdicts and counts are those of all events at once."""
    events, world, whole = ledgers
    order = np.random.default_rng(seed).permutation(events.num_rows)
    shuffled = events.take(pa.array(order)).combine_chunks().sort_by("id").combine_chunks()
    batches = [event_rows(batch) for batch in shuffled.to_batches(max_chunksize=batch_size)]
    parts, counted = Tally(), Tally()
    counted.add_verdicts(whole)

    judged = []
    for table in whole_messages(batches, at_once):
        judged.append(judge_traces(traces_of_rows(table), world))
        part = Tally()
        part.add_verdicts(judged[-1])
        parts.add_json(part.to_json())

    key = [("message_id", "ascending"), ("consumer_group", "ascending")]
    columns = [name for name in whole.column_names if name != "is_lead"]
    both = [
        pa.Table.from_pylist(sorted(table.to_pylist(), key=lambda r: tuple(r[n] for n, _ in key)))
        for table in (whole.select(columns), pa.concat_tables(judged).select(columns))
    ]
    assert both[0].equals(both[1])
    assert sorted(map(str, parts.groups())) == sorted(map(str, counted.groups()))


def test_events_come_through_spark_as_they_were(
    ledgers: tuple[pa.Table, World, pa.Table],
) -> None:
    for batch in ledgers[0].to_batches():
        assert events_of(event_rows(batch)).equals(batch)
        assert events_of(event_rows(batch).slice(3)).equals(batch.slice(3))
    nothing = event_rows(pa.RecordBatch.from_pylist([], EVENTS))
    assert nothing.schema == EVENT_ROWS
    assert events_of(nothing).num_rows == 0


def test_a_stream_is_cut_between_messages_only() -> None:
    schema = pa.schema([("id", pa.binary())])
    ids = [b"a"] * 5 + [b"b"] * 2 + [b"c"] + [b"d"] * 9

    for size, least in itertools.product((1, 2, 3, 20), (1, 4, 100)):
        table = pa.table({"id": ids}, schema)
        parts = list(whole_messages(table.to_batches(max_chunksize=size), least))
        seen = [set(part["id"].to_pylist()) for part in parts]
        assert [each for part in parts for each in part["id"].to_pylist()] == ids
        assert sum(map(len, seen)) == len(set(ids)), "an id in two parts"
        assert len(parts) == 1 or least < len(ids)
    assert list(whole_messages([], 1)) == []
