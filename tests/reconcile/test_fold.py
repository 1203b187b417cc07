"""A message with more records than fit into memory is judged as if all of them were there."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.reconcile.judging import event, rows_of
from tests.reconcile.ledgers import GRACE, LONG_AGO, NOW, message_id

from reliable_mq.reconcile.brokers.log_roles import DEAD, DELAYED, FIRST, RETRY, RETRY_DELAYED
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, bodies_of, event_rows
from reliable_mq.reconcile.judgement.events import EVENTS, LOG, RECORD, ROLES, STUB
from reliable_mq.reconcile.judgement.fold import folded
from reliable_mq.reconcile.judgement.judge import judge
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.judgement.world import World
from reliable_mq.reconcile.runs.spark_judge import JudgementContext

BEFORE, HEAVY, AFTER = message_id(1), message_id(2), message_id(3)
PROGRESS = {
    ("", "payments", "orders"): {0: 500, 1: 40},
    ("", "payments", "%RETRY%payments"): {0: 20, 1: 600},
}
WORLD = World(NOW, GRACE, NOW, frozenset({"orders"}), PROGRESS)
CRCS = ([7], [7, None], [7] * 200 + [8], [None] * 200 + [8])  # of one that differs, too
ROLE_SETS = (
    (FIRST,),
    (FIRST, RETRY),
    (FIRST, RETRY, RETRY_DELAYED, DEAD),
    (DELAYED, RETRY_DELAYED),
    (RETRY, DEAD),
)


def records(seed: int, count: int, roles: tuple[str, ...], crcs: list[Any]) -> list[dict[str, Any]]:
    """Return records of one message, as they lie one after another in a log."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        role = roles[rng.integers(len(roles))]
        is_copy = role not in (FIRST, DELAYED)
        place = {"queue_id": int(rng.integers(2)), "queue_offset": number, "log_offset": number}
        more: dict[str, Any] = {"crc": crcs[rng.integers(len(crcs))], "size": 100}
        if is_copy:
            more |= {"consumer_group": "payments", "queue_topic": "%RETRY%payments"}
        if role == DEAD:
            more["reason"] = f"attempt {number} failed"
        if role in (DELAYED, RETRY_DELAYED):
            more["until"] = LONG_AGO + (NOW - LONG_AGO) * float(rng.random())
        tries = int(rng.integers(3)) if is_copy else 0
        state = ROLES.index(role)
        made.append(event(RECORD, HEAVY, broker="", state=state, tries=tries, **place | more))
    return made


@settings(deadline=None, max_examples=8)
@given(
    seed=st.integers(0, 10**6),
    roles=st.sampled_from(ROLE_SETS),
    crcs=st.sampled_from(CRCS),
    status=st.integers(0, 2),
)
@example(seed=0, roles=(FIRST,), crcs=CRCS[2], status=0)
def test_a_folded_message_is_judged_as_the_whole_one(
    seed: int, roles: tuple[str, ...], crcs: list[Any], status: int
) -> None:
    """Given hundreds of records of one id between other messages, and room for a few dozen, then
    verdicts, facts and counts are those of all of them together."""
    stub = {"required": "payments", "state": status, "crc": 7, "size": 1}
    events = [event(STUB, BEFORE, **stub), event(STUB, HEAVY, **stub)]
    events += [event(LOG, HEAVY, consumer_group="audit", state=1)]
    events += [*records(seed, 400, roles, crcs), event(STUB, AFTER, **stub)]
    table = pa.Table.from_pylist(events, EVENTS)
    whole, counted, tally = judge(table, WORLD), Tally(), Tally()
    counted.add_verdicts(whole)
    batches = [event_rows(batch) for batch in table.to_batches(max_chunksize=30)]

    judging = JudgementContext(WORLD, (), "rmq_", events_at_once=40)
    parts = pa.concat_tables(judging.verdicts(batches, tally))

    names = ("message_id", "consumer_group", "verdict", "record_copies", "retries", "message_time")
    facts = [name for name in whole.column_names if name.startswith("fact_")]
    for one, other in zip(rows_of(parts), rows_of(whole), strict=True):
        assert {n: one[n] for n in (*names, *facts)} == {n: other[n] for n in (*names, *facts)}
    assert sorted(map(str, tally.groups())) == sorted(map(str, counted.groups()))
    ledgers = tally.ledger_counts()
    assert (ledgers["stubs"], ledgers["consume_logs"]) == (3, 1)
    assert (ledgers["first_deliveries"] or 0) + (ledgers["other_copies"] or 0) == 400


def test_folding_leaves_few_records_and_everything_else() -> None:
    heavy = [event(STUB, HEAVY), *records(1, 5_000, (FIRST, RETRY, DEAD), [7, 8, None])]
    batch = pa.RecordBatch.from_pylist(heavy, EVENTS)

    kept, rest = folded(pa.Table.from_batches([event_rows(batch)], EVENT_ROWS))

    assert kept.num_rows + len(rest) == len(heavy)
    assert kept.num_rows < 400
    assert not np.any(rest["kind"] == STUB)


def test_the_smallest_and_the_largest_of_each_column_are_kept_for_each_kind_of_record() -> None:
    """Records of another attempt, queue or role are of another kind, and so are those without a
    checksum. The reasons of dead letters make none."""
    columns = ("log_offset", "queue_offset", "seen", "changed", "until", "crc")
    rng = np.random.default_rng(5)
    rows: list[dict[str, Any]] = []
    expected: set[int] = set()
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"tries": 2},
        {"queue_id": 1},
        {"state": ROLES.index(RETRY)},
        {"consumer_group": "audit"},
    )
    for kind in kinds:
        values = {name: rng.permutation(20) for name in columns}
        begin = len(rows)
        for at in range(20):
            row: dict[str, Any] = {"queue_id": 0, "tries": 0, "size": len(rows), **kind}
            row |= {name: int(each[at]) for name, each in values.items()}
            row |= {
                name: LONG_AGO + (NOW - LONG_AGO) * int(row[name]) / 20 for name in columns[2:5]
            }
            rows.append(event(RECORD, HEAVY, reason=f"{at}", **row))
        for each in values.values():
            expected |= {begin + int(each.argmin()), begin + int(each.argmax())}
    bare = [{**rows[at], "crc": None, "size": 900 + at} for at in range(20)]
    batch = pa.RecordBatch.from_pylist([*rows, *bare], EVENTS)

    kept, rest = folded(pa.Table.from_batches([event_rows(batch)], EVENT_ROWS))

    sizes = bodies_of(kept["body"].combine_chunks())["size"].tolist()
    assert {size for size in sizes if size < 900} == expected
    assert 900 + int(np.argmax([row["log_offset"] for row in rows[:20]])) in sizes
    assert kept.num_rows + len(rest) == len(rows) + len(bare)
