"""The values beside a verdict: each is that of the ledger which it is named after."""

from datetime import timedelta
from typing import Any

import pytest
from tests.reconcile.judging import event
from tests.reconcile.ledgers import LONG_AGO
from tests.reconcile.one_message import OTHER, M, after, judged, log, record, stub

from reliable_mq.reconcile.brokers.log_roles import DEAD, DELAYED, RETRY, STRANDED
from reliable_mq.reconcile.judgement.events import (
    CONFIRMED,
    CONSUMED,
    IN_DOUBT,
    STUB,
    TELLS,
    TOMBSTONE,
)
from reliable_mq.reconcile.judgement.judge import DETAILS, VERDICTS

ROW = {
    "message_id": M,
    "consumer_group": "payments",
    "topic": "orders",
    "verdict": "settled",
    "finding": False,
    "is_lead": True,
    "stub_seq": 9,
    "stub_status": CONFIRMED,
    "stub_count": 2,
    "stub_create_date": after(0),
    "stub_update_date": after(50),
    "stub_broker_name": "a",
    "stub_queue_id": 3,
    "stub_offset": 5,
    "stub_content_size": 77,
    "stub_content_crc": 17,
    "other_stub_create_date": None,
    "record_copies": 2,
    "record_broker_name": "a",
    "record_queue_id": 3,
    "record_queue_offset": 5,
    "record_commit_log_offset": 1_000,
    "record_size": 200,
    "record_content_crc": 17,
    "record_store_time": after(2),
    "other_commit_log_offsets": [2_000],
    "differing_commit_log_offset": None,
    "differing_content_crc": None,
    "differing_topic": None,
    "progress": 40,
    "queue_begin": 4,
    "retries": 2,
    "dead_letter_offset": 3_000,
    "dead_letter_reason": "no such order",
    "log_state": CONSUMED,
    "log_attempt": 4,
    "log_lease_until": after(60),
    "log_create_date": after(5),
    "log_consume_date": after(12),
    "log_broker_name": "b",
    "other_consume_date": None,
    "log_in_doubt": True,
    "log_skipped": False,
    "stored_ms": 2_000,
    "delivered_ms": None,
    "effect_ms": 10_000,
    "consumed_ms": 12_000,
}


@pytest.mark.parametrize("first", range(8))
def test_a_row_has_the_values_of_stub_record_and_consume_log(first: int) -> None:
    """Given a message with two first deliveries, retries, a dead letter and a consume log, in any
    order."""
    group = {"consumer_group": "payments", "queue_topic": "%RETRY%payments"}
    told = {"seen": after(0), "changed": after(50), "crc": 17, "size": 77, "log_offset": 9}
    begun = {"seen": after(5), "changed": after(12), "until": after(60), "broker": "b"}
    events = [
        stub(state=CONFIRMED, tries=2, **told),
        record(log_offset=2_000, queue_offset=6, broker="b", seen=after(3), crc=17),
        record(size=200, crc=17, seen=after(2)),
        record(RETRY, log_offset=2_500, tries=1, **group),
        record(RETRY, log_offset=2_600, tries=2, **group),
        record(DEAD, log_offset=3_100, seen=after(5), reason="a second", **group),
        record(DEAD, log_offset=3_000, seen=after(4), reason="no such order", **group),
        log(tries=4, marks=IN_DOUBT | TELLS, **begun),
    ]
    progress = {
        ("a", "payments", "orders"): {3: 40},
        ("b", "payments", "orders"): {3: 41},
        ("a", "payments", "%RETRY%payments"): {3: 6},
    }
    begins = {("a", "orders"): {3: 4}, ("b", "orders"): {3: 1}}
    (row,) = judged(*events[first:], *events[:first], progress=progress, begins=begins)

    facts = {name.removeprefix("fact_"): row.pop(name) for name in [*row] if "fact_" in name}
    assert facts == {
        "stub": "confirmed",
        "group": "required",
        "position": "known",
        "record": "present",
        "progress": "passed",
        "retry": "dead",
        "log": "consumed",
        "everyone": "yes",
        "age": "old",
        "topic": "managed",
    }
    assert {name: row.pop(name) for name in DETAILS} == dict.fromkeys(DETAILS)
    born = row.pop("message_time")
    assert abs(born - LONG_AGO) < timedelta(seconds=1)
    assert row == ROW


def test_what_no_ledger_has_is_null() -> None:
    """Given a stub that was never sent, then of the broker and of consumers nothing is told."""
    (row,) = judged(event(STUB, M, required="payments", tries=0))

    empty = {name for name, value in row.items() if value is None}
    named = {name for name in VERDICTS.names if name.startswith(("log_", "other_", "differing_"))}
    named -= {"log_in_doubt", "log_skipped", "other_commit_log_offsets"}
    named |= {name for name in VERDICTS.names if name.startswith(("record_", "dead_", *DETAILS))}
    named -= {"record_copies"}
    named |= {"stub_seq", "stub_broker_name", "stub_queue_id", "stub_offset"}
    named |= {"stub_content_size", "stub_content_crc", "progress", "queue_begin"}
    assert empty == named | {"stored_ms", "delivered_ms", "effect_ms", "consumed_ms"}
    assert (row["verdict"], row["finding"], row["stub_status"]) == ("not sent", True, 0)
    assert (row["record_copies"], row["retries"], row["log_in_doubt"]) == (0, 0, False)
    assert row["other_commit_log_offsets"] == []
    facts = {"stub": "unconfirmed", "position": "unknown", "record": "absent", "log": "none"}
    facts |= {"progress": "behind", "retry": "none", "everyone": "no"}
    assert {name: row[f"fact_{name}"] for name in facts} == facts


def test_a_tombstone_is_told_as_a_voided_stub() -> None:
    (row,) = judged(stub(state=TOMBSTONE, broker=None, queue_id=None, queue_offset=None))
    assert (row["stub_status"], row["fact_stub"], row["verdict"]) == (2, "tombstone", "voided")


def test_a_message_without_a_stub_has_no_values_of_one() -> None:
    (row,) = judged(record(), log())
    assert {name: row[name] for name in VERDICTS.names if "stub" in name} == {
        name: "none" if name == "fact_stub" else None for name in VERDICTS.names if "stub" in name
    }
    assert (row["fact_group"], row["fact_position"]) == ("extra", "unknown")


def test_the_latencies_of_a_delayed_message_begin_and_end_at_its_stations() -> None:
    """It is stored when the delay begins. Its delivery is measured from its deliver time."""
    (row,) = judged(
        stub(until=after(10), state=CONFIRMED),
        record(DELAYED, log_offset=500, seen=after(1), until=after(10)),
        record(seen=after(10.25)),
        log(changed=after(11.5)),
    )
    names = ("stored_ms", "delivered_ms", "effect_ms", "consumed_ms")
    assert [row[name] for name in names] == [1_000, 250, 1_250, 11_500]
    assert (row["record_commit_log_offset"], row["record_store_time"]) == (1_000, after(10.25))


@pytest.mark.parametrize("role", [DELAYED, STRANDED])
def test_of_records_that_no_consumer_can_read_the_lowest_is_told(role: str) -> None:
    """Neither counts as a copy, and the progress is that in the queue of the stub."""
    (row,) = judged(
        stub(),
        record(role, log_offset=700, seen=after(3)),
        record(role, log_offset=600, seen=after(2), until=after(100)),
        progress={("a", "payments", "orders"): {3: 2}},
    )
    told = (row["record_commit_log_offset"], row["record_store_time"], row["record_copies"])
    assert told == (600, after(2), 0)
    assert row["progress"] == 2
    assert row["fact_record"] == {DELAYED: "overdue", STRANDED: "stranded"}[role]


def test_of_many_copies_twenty_are_told_behind_the_first() -> None:
    copies = [record(log_offset=100 * (40 - number), queue_offset=number) for number in range(30)]
    few = [record(identity=OTHER, log_offset=at) for at in (9, 7, 8)]
    rows = {row["message_id"]: row for row in judged(stub(), stub(OTHER), *copies, *few)}
    assert rows[M]["record_commit_log_offset"] == 1_100
    assert rows[M]["other_commit_log_offsets"] == [1_100 + 100 * at for at in range(1, 21)]
    assert (rows[M]["record_copies"], rows[OTHER]["record_copies"]) == (30, 3)
    assert rows[OTHER]["record_commit_log_offset"] == 7
    assert rows[OTHER]["other_commit_log_offsets"] == [8, 9]


def test_of_a_forged_pair_the_right_record_is_evidence_and_the_other_one_is_named() -> None:
    (row,) = judged(
        stub(crc=17),
        record(crc=18, log_offset=500, topic="forged"),
        record(crc=19, log_offset=550, topic="later"),
        record(crc=17, log_offset=900),
    )
    assert (row["verdict"], row["record_commit_log_offset"]) == ("forged", 900)
    differing = ("differing_commit_log_offset", "differing_content_crc", "differing_topic")
    assert [row[name] for name in differing] == [500, 18, "forged"]


@pytest.mark.parametrize("column", ["crc", "digest_1", "digest_2"])
def test_content_differs_when_a_checksum_that_both_have_differs(column: str) -> None:
    """A checksum that one of the ledgers lacks is not compared."""
    cases = [(17, 18, "differs"), (17, 17, "present"), (None, 17, "present"), (17, None, "present")]
    for said, found, fact in cases:
        (row,) = judged(stub(**{column: said}), record(**{column: found}))
        assert row["fact_record"] == fact
    (row,) = judged(stub(**{column: 17}), record(DELAYED, until=after(9), **{column: 18}))
    assert row["fact_record"] == "differs"


def test_of_a_forged_pair_the_place_of_the_consume_log_says_which_one_was_consumed() -> None:
    """Given a consume log with the place of the record that does not match, the right message was
    suppressed. A place that a retry of the group has, too, proves nothing."""
    pair = [stub(crc=17), record(crc=17, log_offset=900, queue_offset=6), record(crc=18)]
    right, other = ({"queue_id": 3, "queue_offset": place} for place in (6, 5))
    retry = record(RETRY, log_offset=950, consumer_group="payments", queue_topic="%RETRY%payments")

    def of(*more: dict[str, Any]) -> str:
        (row,) = judged(*pair, *more)
        return str(row["fact_log"])

    assert of(log(**right)) == "consumed"
    assert of(log(**other)) == "other"
    assert of(log(**other, topic="elsewhere")) == "consumed"
    assert of(log(**other | {"broker": "b"})) == "consumed"
    assert of(log(**other | {"queue_id": 2})) == "consumed"
    assert of(log(**other, state=0)) == "dead"
    assert of(log(**other), retry) == "consumed"
    assert of() == "none"


def test_the_second_effect_is_told_with_its_time() -> None:
    """An effect is one that is no duplicate and no notice; of more than two the next is told."""
    first, third = log(seen=after(1), changed=after(2)), log(seen=after(5), changed=after(6))
    second = log(seen=after(3), changed=after(4))
    (row,) = judged(second, first, third, stub(), record())
    assert (row["fact_log"], row["other_consume_date"]) == ("twice", after(4))
    (row,) = judged(stub(), record(), third, second, first)
    assert (row["fact_log"], row["log_consume_date"]) == ("twice", after(2))
    assert row["other_consume_date"] == after(4)
    (row,) = judged(stub(), record(), log(seen=after(1), changed=after(9)), first)
    assert row["fact_log"] == "twice", "they were consumed at different times"
