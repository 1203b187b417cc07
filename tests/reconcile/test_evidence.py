"""What a person on call reads of a finding: named values, and one sentence."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from reliable_mq.reconcile.judgement.events import ODD
from reliable_mq.reconcile.judgement.evidence import cut, evidence_of, recorded_row, sentence
from reliable_mq.reconcile.judgement.judge import VERDICTS
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.judgement.verdict import MEANINGS, Verdict

MOMENT = datetime(2026, 11, 20, 12, 0, 0, 123_456, tzinfo=UTC)
TOLD = "2026-11-20T12:00:00.123Z"


class Row(dict[str, Any]):
    """A row of the result in which what is not named is null."""

    def __missing__(self, name: str) -> None:
        return None


def row(verdict: Verdict, **values: Any) -> Row:
    return Row(verdict=str(verdict), **values)


PLACE = {
    "record_store_time": MOMENT,
    "record_queue_id": 3,
    "record_queue_offset": 17,
    "record_commit_log_offset": 4096,
}
PLACED = f"stored {TOLD} in queue 3 at offset 17 (log offset 4096)"
DIFFERING = {"differing_commit_log_offset": 99, "differing_content_crc": 0xBEEF}
CONSUMED = {"log_consume_date": MOMENT, "log_attempt": 2}


@pytest.mark.parametrize(
    ("verdict", "values", "expected"),
    [
        (
            Verdict.LOST,
            {"stub_queue_id": 1, "stub_offset": 5},
            "acknowledged at queue 1 offset 5, but the log does not have it there or anywhere else",
        ),
        (Verdict.LOST, {}, MEANINGS[Verdict.LOST]),
        (
            Verdict.NOT_SENT,
            {"stub_create_date": MOMENT, "stub_count": 4},
            f"committed {TOLD}, 4 sends, no record",
        ),
        (Verdict.NOT_SENT, {"stub_create_date": MOMENT}, f"committed {TOLD}, 0 sends, no record"),
        (Verdict.SENT_NOT_MARKED, PLACE, f"{PLACED}; the stub has no position"),
        (
            Verdict.NOT_CONSUMED,
            PLACE | {"progress": 20},
            f"{PLACED}; the group is at 20, without a log",
        ),
        (
            Verdict.STUCK,
            {"log_state": 0, "log_attempt": 3, "log_lease_until": MOMENT},
            f"RECEIVED at attempt 3, lease ended {TOLD}; the group has passed it",
        ),
        (
            Verdict.STUCK,
            {"log_state": 0, "log_attempt": 3},
            "RECEIVED at attempt 3, lease ended long ago; the group has passed it",
        ),
        (Verdict.STUCK, {}, MEANINGS[Verdict.STUCK]),
        (
            Verdict.CONSUMED_NOT_CONFIRMED,
            CONSUMED | {"stub_status": 0},
            f"consumed {TOLD}; the stub is UNCONFIRMED",
        ),
        (
            Verdict.DEAD_LETTERED,
            {"dead_letter_offset": 8, "dead_letter_reason": "ValueError", "retries": 16},
            "ValueError; dead letter at log offset 8, 16 retries",
        ),
        (
            Verdict.DEAD_LETTERED,
            {"dead_letter_offset": 8, "retries": 0},
            "no reason given; dead letter at log offset 8, 0 retries",
        ),
        (
            Verdict.DEAD_LETTERED,
            {},
            "the stub says that the group gave it up; the dead letter has left the log",
        ),
        (
            Verdict.CONTENT_DIFFERS,
            DIFFERING | {"stub_content_crc": 0xAB},
            "the stub's content has crc 000000ab, the record at log offset 99 has 0000beef",
        ),
        (
            Verdict.CONTENT_DIFFERS,
            DIFFERING | {"stub_content_crc": 0xBEEF},
            (
                "the record at log offset 99 has another topic, tag, key or property than the stub,"
                " or another content"
            ),
        ),
        (
            Verdict.FORGED,
            DIFFERING | PLACE | {"stub_content_crc": 1},
            (
                "the stub's content has crc 00000001, the record at log offset 99 has 0000beef;"
                " the right one lies at 4096"
            ),
        ),
        (
            Verdict.SUPPRESSED,
            DIFFERING | CONSUMED | {"stub_content_crc": 1},
            (
                "the stub's content has crc 00000001, the record at log offset 99 has 0000beef;"
                f" the group consumed it {TOLD}, and the right one was suppressed"
            ),
        ),
        (Verdict.VOIDED_BUT_CONSUMED, CONSUMED, f"consumed {TOLD} at attempt 2"),
        (
            Verdict.DUPLICATE_EFFECT,
            CONSUMED | {"other_consume_date": MOMENT.replace(second=9)},
            f"consumed {TOLD} and again 2026-11-20T12:00:09.123Z",
        ),
        (Verdict.ORPHAN, PLACE, f"{PLACED}; no stub was ever committed"),
        (
            Verdict.ORPHAN,
            PLACE | {"stub_status": 2},
            f"{PLACED}; its transaction was rolled back",
        ),
        (Verdict.ORPHAN, {}, MEANINGS[Verdict.ORPHAN]),
    ],
)
def test_a_finding_is_told_in_one_sentence(
    verdict: Verdict, values: dict[str, Any], expected: str
) -> None:
    assert sentence(row(verdict, **values)) == expected


def test_a_status_that_nobody_writes_is_told_with_the_finding() -> None:
    told = sentence(row(Verdict.VOIDED_BUT_CONSUMED, stub_status=ODD, **CONSUMED))
    assert told == (
        f"consumed {TOLD} at attempt 2; another program set the stub's status: none that we write"
    )


@pytest.mark.parametrize(
    ("column", "value", "name", "told"),
    [
        ("stub_status", 0, "stub_status", "UNCONFIRMED"),
        ("stub_status", 1, "stub_status", "CONFIRMED"),
        ("stub_status", 2, "stub_status", "VOIDED"),
        ("stub_status", 77, "stub_status", 77),
        ("log_state", 0, "consume_log", "RECEIVED"),
        ("log_state", 1, "consume_log", "CONSUMED"),
        ("stub_content_crc", 0, "content_crc", "00000000"),
        ("record_content_crc", 0xABC, "record_crc", "00000abc"),
        ("differing_content_crc", 0xFFFFFFFF, "differing_crc", "ffffffff"),
        ("stub_count", 0, "sends", 0),
        ("stub_broker_name", "a", "acknowledged_by", "a"),
        ("stub_content_size", 5, "content_size", 5),
        ("record_size", 120, "record_size", 120),
        ("record_copies", 2, "records", 2),
        ("queue_begin", 6, "queue_begins_at", 6),
        ("other_commit_log_offsets", [1, 2], "other_commit_log_offsets", [1, 2]),
        ("record_store_time", MOMENT, "stored", TOLD),
    ],
)
def test_a_value_is_told_by_its_name_as_people_write_it(
    column: str, value: Any, name: str, told: Any
) -> None:
    assert evidence_of(row(Verdict.LOST, **{column: value})) == {name: told}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("retries", 0),
        ("queue_begin", 0),
        ("stub_note", ""),
        ("stub_note", None),
        ("other_commit_log_offsets", []),
    ],
)
def test_what_says_nothing_is_left_out(column: str, value: Any) -> None:
    assert evidence_of(row(Verdict.LOST, **{column: value})) == {}


def test_damage_of_a_log_begins_at_its_lowest_place_and_is_added_up() -> None:
    tally = Tally()
    tally.add_damage(np.array([10, 20]), np.array([500, 300]))
    tally.add_damage(np.array([5]), np.array([400]))
    tally.add_damage(np.array([], np.int64), np.array([], np.int64))
    assert tally.ledgers["damaged_stretches"] == 3
    assert tally.ledgers["damaged_bytes"] == 35
    assert tally.damaged_from == 300


def test_every_value_has_a_name_of_its_own() -> None:
    """Given a row in which every column says something, then each of them is told."""
    columns = [name for name in VERDICTS.names if name not in ("verdict", "message_id")]
    told = evidence_of(row(Verdict.LOST, **dict.fromkeys(columns, 7)))
    named = [evidence_of(row(Verdict.LOST, **{name: 7})) for name in columns]
    names = [name for each in named for name in each]
    assert all(names)
    assert len(names) == len(set(names)) == len(told)
    assert set(names) == set(told)
    silent = {name for name, each in zip(columns, named, strict=True) if not each}
    silent -= {name for name in columns if name.startswith("fact_") or name.endswith("_ms")}
    assert silent == {
        *("consumer_group", "topic", "finding", "message_time", "is_lead"),
        *("log_broker_name", "log_in_doubt", "log_skipped"),
    }
    for name in ("differing_topic", "dead_letter_reason", "acknowledged_by", "lease_owner"):
        assert name in told


def test_a_repair_finds_in_the_evidence_what_it_asks_of_the_row() -> None:
    seen = {
        "message_id": "m",
        "consumer_group": "billing",
        "topic": "orders",
        "stub_status": 0,
        "stub_count": 0,
        "stub_update_date": MOMENT,
        "stub_offset": 0,
        "log_owner": "shop-1",
        "log_state": 0,
        "record_broker_name": "broker-a",
        "record_queue_id": 0,
        "record_queue_offset": 0,
    }
    given = row(Verdict.STUCK, **seen)
    found = recorded_row(given, evidence_of(given))
    assert {name: found[name] for name in seen} == seen | {"stub_update_date": cut(MOMENT)}
    bare = row(Verdict.LOST, message_id="m", consumer_group="", topic=None, stub_status=ODD)
    assert recorded_row(bare, evidence_of(bare))["stub_status"] == ODD
    assert recorded_row(bare, {"stub_changed": "soon", "stub_status": 7})["stub_status"] is None
    assert recorded_row(bare, {"stub_changed": "soon"})["stub_update_date"] is None
