"""What a run counts: the rows of its ledgers, verdicts by the keys of the report, and damage."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.reconcile.judging import event
from tests.reconcile.ledgers import LONG_AGO, message_id
from tests.reconcile.one_message import AROUND, OTHER, M, after, log, record, stub

from reliable_mq.reconcile.brokers.log_roles import DEAD, DELAYED, FIRST, RETRY
from reliable_mq.reconcile.judgement.doubts import SHOWN_MAX as DOUBTS_MAX
from reliable_mq.reconcile.judgement.doubts import Doubts
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, event_rows
from reliable_mq.reconcile.judgement.events import (
    CONSUMED,
    EVENTS,
    IN_DOUBT,
    LOG,
    RECORD,
    ROLES,
    STUB,
    TOLD,
)
from reliable_mq.reconcile.judgement.judge import judge
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.judgement.twin_ids import SHOWN_MAX as TWINS_MAX
from reliable_mq.reconcile.judgement.twin_ids import TwinIds

DAY = timedelta(days=1)


def verdicts(*events: dict[str, Any]) -> pa.Table:
    return judge(pa.Table.from_pylist(list(events), EVENTS), AROUND)


def added(*parts: Tally) -> Tally:
    """Return the sum of tallies, as a run makes it."""
    whole = Tally()
    for part in parts:
        whole.add_json(part.to_json())
    return whole


def test_the_rows_of_each_ledger_are_counted() -> None:
    roles = [ROLES.index(role) for role in (FIRST, RETRY, FIRST, DEAD, DELAYED)]
    # A consume log has a state of its own, which is no role.
    kinds = np.array([STUB, STUB, STUB, LOG, LOG, TOLD, *[RECORD] * 5])
    states = np.array([0, 0, 1, ROLES.index(FIRST), 1, 0, *roles])
    tally = Tally()
    tally.add_events(kinds, states)
    tally.add_events(np.array([STUB]), np.array([0]))
    counts = {"stubs": 4, "consume_logs": 3, "first_deliveries": 2, "other_copies": 3}
    counts |= {"damaged_stretches": 0, "damaged_bytes": 0}
    assert tally.ledger_counts() == counts | {"damaged_from": None}
    assert added(tally, tally).ledger_counts() == {
        name: 2 * count for name, count in counts.items()
    } | {"damaged_from": None}


def test_damage_is_added_up_and_begins_at_its_lowest_place() -> None:
    tally, other, none = Tally(), Tally(), Tally()
    tally.add_damage(np.array([100, 50]), np.array([7_000, 3_000]))
    tally.add_damage(np.array([1]), np.array([5_000]))
    other.add_damage(np.array([10]), np.array([4_000]))
    none.add_damage(np.array([], np.int64), np.array([], np.int64))
    for parts, told in (
        ((tally,), (3, 151, 3_000)),
        ((none, other, tally), (4, 161, 3_000)),
        ((other, none), (1, 10, 4_000)),
        ((none, none), (0, 0, None)),
    ):
        counts = added(*parts).ledger_counts()
        names = ("damaged_stretches", "damaged_bytes", "damaged_from")
        assert tuple(counts[name] for name in names) == told


def test_verdicts_are_counted_by_verdict_topic_group_and_day() -> None:
    """A message counts once, at its first group. Further copies are counted with the message, and
    retries with their group."""
    retry = record(RETRY, log_offset=2_000, tries=3, consumer_group="payments", queue_id=9)
    table = verdicts(
        stub(required="audit,payments"),
        record(),
        record(log_offset=1_500),
        record(log_offset=1_600),
        retry,
        log(consumer_group="audit"),
        stub(OTHER, queue_offset=None, required="payments"),
        stub(message_id(3, LONG_AGO - DAY), required="payments", queue_offset=None),
        stub(message_id(4), required="payments", queue_offset=None, topic="refunds"),
        event(LOG, "a name", consumer_group="payments", seen=None, changed=None),
    )
    tally = Tally()
    tally.add_verdicts(table)

    day = (LONG_AGO - datetime(1970, 1, 1, tzinfo=LONG_AGO.tzinfo)) // DAY
    orders = ("orders", "payments")
    expected = {
        ("settled", False, "orders", "audit", day): (1, 1, 2, 0),
        ("waiting", False, *orders, day): (1, 0, 0, 3),
        ("not sent", True, *orders, day): (1, 1, 0, 0),
        ("not sent", True, *orders, day - 1): (1, 1, 0, 0),
        ("not sent", True, "refunds", "payments", day): (1, 1, 0, 0),
        ("orphan", True, *orders, None): (1, 1, 0, 0),
    }
    assert {tuple(row[:5]): tuple(row[5:]) for row in tally.groups()} == expected
    twice = {key: tuple(2 * each for each in sums) for key, sums in expected.items()}
    assert {tuple(row[:5]): tuple(row[5:]) for row in added(tally, tally).groups()} == twice
    tally.add_verdicts(table)
    assert {tuple(row[:5]): tuple(row[5:]) for row in tally.groups()} == twice


def test_carried_and_unchecked_messages_are_counted_once_each() -> None:
    packed = stub(crc=17), record(crc=None), record(crc=None, log_offset=2_000), stub(OTHER, crc=1)
    compared = [stub(message_id(3), crc=17), record(identity=message_id(3), crc=17)]
    tally = Tally()
    tally.add_verdicts(verdicts(*packed, *compared, log(), log(consumer_group="audit")))
    batches = [event_rows(pa.RecordBatch.from_pylist([*packed, *compared], EVENTS))]
    tally.add_carried(pa.Table.from_batches(batches, EVENT_ROWS))
    assert (tally.unchecked, tally.carried) == (1, 3)
    whole = added(tally, tally)
    assert (whole.unchecked, whole.carried) == (2, 6)


def test_doubts_and_twins_of_all_parts_are_in_the_sum() -> None:
    parts = []
    for number in (2, 1):
        identity, tally = message_id(number), Tally()
        doubtful = log(identity, marks=IN_DOUBT, seen=after(number), tries=number)
        twins = stub(identity), stub(identity, seen=after(5))
        tally.add_verdicts(verdicts(*twins, record(identity=identity), doubtful))
        parts.append(tally)
    whole = added(*parts)
    doubts = whole.doubts.summary()
    assert doubts["count"] == 2
    assert doubts["newest"][1] == {
        "received": "2026-11-20T10:00:01.000Z",
        "message_id": message_id(1),
        "consumer_group": "payments",
        "topic": "orders",
        "verdict": "consumed, not confirmed",
        "attempts": 1,
    }
    assert [each["attempts"] for each in doubts["newest"]] == [2, 1], "the newest comes first"
    assert whole.twins.summary() == {"count": 2, "first": [message_id(1), message_id(2)]}
    assert (whole.flow.arrivals["committed"].total(), whole.flow.arrivals["stored"].total()) == (
        2,
        2,
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_only_so_many_doubts_and_twins_are_kept_and_all_are_counted(reverse: bool) -> None:
    rows: dict[str, list[Any]] = {
        "log_create_date": [after(number) for number in range(DOUBTS_MAX + 5)],
        "message_id": [f"M{number:05}" for number in range(DOUBTS_MAX + 5)],
        "other_stub_create_date": [LONG_AGO] * (DOUBTS_MAX + 5),
        **{name: ["x"] * (DOUBTS_MAX + 5) for name in ("consumer_group", "topic", "verdict")},
        "log_attempt": [1] * (DOUBTS_MAX + 5),
        **{name: [True] * (DOUBTS_MAX + 5) for name in ("log_in_doubt", "is_lead")},
    }
    table = pa.table(rows)
    halves = [table.slice(0, 700), table.slice(700)]
    doubts, twins = Doubts(), TwinIds()
    for half in halves[::-1] if reverse else halves:
        doubts.add(half)
        twins.add(half)
        assert doubts.invariants()
        assert twins.invariants()
    newest = doubts.summary()["newest"]
    assert doubts.summary()["count"] == twins.summary()["count"] == DOUBTS_MAX + 5
    assert [newest[0]["message_id"], newest[-1]["message_id"]] == ["M01004", "M00005"]
    assert len(newest) == DOUBTS_MAX == 1_000
    assert twins.summary()["first"] == [f"M{number:05}" for number in range(TWINS_MAX)]
    assert TWINS_MAX == 100


def test_twins_are_counted_once_for_each_message_and_told_in_a_clause() -> None:
    twins = TwinIds()
    two_groups = stub(required="audit,payments"), stub(seen=after(5))
    twins.add(verdicts(*two_groups, stub(OTHER), log(OTHER, state=CONSUMED)))
    assert twins.summary() == {"count": 1, "first": [M]}
    assert (twins.flaw() or "").startswith("1 id belongs to two stubs")
    twins.add_data([1_999, ["A"]])
    told = twins.flaw() or ""
    assert told.startswith("2,000 ids belong to two stubs")
    assert told.endswith(f"the first id is {min('A', M)}")
    assert TwinIds().flaw() is None
