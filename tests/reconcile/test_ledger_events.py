"""Rows of the ledgers as events: each value lies in the column that the judgement reads it from."""

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.reconcile.ledgers import LONG_AGO, message_id

from reliable_mq.message import NOTICE_TOPIC_PREFIX
from reliable_mq.reconcile.brokers.log_roles import DAMAGED, FIRST, RETRY, STRANDED, SYSTEM
from reliable_mq.reconcile.judgement.events import (
    DUPLICATE,
    EVENTS,
    IN_DOUBT,
    LOG,
    ODD,
    RECORD,
    ROLES,
    SKIPPED,
    STUB,
    TELLS,
    TOLD,
    TOMBSTONE,
    packed_ids,
)
from reliable_mq.reconcile.judgement.ledger_events import (
    log_events,
    notice_events,
    record_events,
    stub_events,
)

M = message_id(1)
PACKED = packed_ids(pa.array([M]))[0].as_py()
DIGEST = (11).to_bytes(8, "little") + (-12).to_bytes(8, "little", signed=True)
TIME = pa.timestamp("us", tz="UTC")
NOTHING: dict[str, Any] = dict.fromkeys(EVENTS.names) | {"marks": 0}

STUBS = pa.schema(
    [
        *((name, pa.string()) for name in ("message_id", "topic", "broker_name")),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        *((name, pa.int32()) for name in ("status", "count", "content_crc")),
        *((name, TIME) for name in ("create_date", "update_date", "deliver_time")),
        *((name, pa.int64()) for name in ("content_size", "seq")),
        *((name, pa.string()) for name in ("required_groups", "given_up_by")),
        ("message_digest", pa.binary()),
    ]
)
LOGS = pa.schema(
    [
        *((name, pa.string()) for name in ("message_id", "topic", "consumer_group")),
        *((name, pa.string()) for name in ("broker_name", "owner", "duplicate_of", "confirm_to")),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        *((name, pa.int32()) for name in ("state", "attempt")),
        *((name, TIME) for name in ("create_date", "consume_date", "lease_until")),
        ("in_doubt", pa.bool_()),
    ]
)
NOTICES = pa.schema(
    [
        *((name, pa.string()) for name in ("message_id", "consumer_group")),
        ("state", pa.int32()),
        *((name, TIME) for name in ("create_date", "update_date")),
    ]
)
RECORDS = pa.schema(
    [
        *((name, pa.string()) for name in ("role", "topic", "consumer_group", "message_id")),
        *((name, pa.string()) for name in ("queue_topic", "reason")),
        *((name, pa.int64()) for name in ("commit_log_offset", "size", "queue_offset")),
        *((name, pa.int32()) for name in ("queue_id", "reconsume_times", "content_crc")),
        *((name, TIME) for name in ("born_time", "store_time", "due_time")),
        ("message_digest", pa.binary()),
    ]
)


def after(seconds: float) -> datetime:
    return LONG_AGO + timedelta(seconds=seconds)


def batch(schema: pa.Schema, *rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema)


def a_stub(**values: Any) -> dict[str, Any]:
    return {
        "message_id": M,
        "topic": "orders",
        "broker_name": "a",
        "queue_id": 3,
        "offset": 5,
        "status": 1,
        "count": 2,
        "create_date": after(1),
        "update_date": after(2),
        "deliver_time": after(9),
        "content_crc": 17,
        "content_size": 77,
        "seq": 4,
        "required_groups": "payments,audit",
        "given_up_by": "",
        "message_digest": DIGEST,
    } | values


def a_log(**values: Any) -> dict[str, Any]:
    return {
        "message_id": M,
        "topic": "orders",
        "consumer_group": "payments",
        "broker_name": "a",
        "queue_id": 3,
        "offset": 5,
        "state": 1,
        "attempt": 2,
        "create_date": after(1),
        "consume_date": after(2),
        "owner": "me",
        "lease_until": after(3),
        "in_doubt": False,
        "duplicate_of": None,
        "confirm_to": None,
    } | values


def a_record(**values: Any) -> dict[str, Any]:
    return {
        "role": FIRST,
        "message_id": M,
        "topic": "orders",
        "queue_topic": "orders-2",
        "commit_log_offset": 1_000,
        "size": 200,
        "queue_id": 3,
        "queue_offset": 5,
        "reconsume_times": 2,
        "born_time": after(1),
        "store_time": after(2),
        "content_crc": 17,
        "message_digest": DIGEST,
        "due_time": after(9),
        "reason": "why",
        "consumer_group": "payments",
    } | values


def test_a_stub_as_an_event() -> None:
    (event,) = stub_events(batch(STUBS, a_stub())).to_pylist()
    assert event == NOTHING | {
        "id": PACKED,
        "kind": STUB,
        "topic": "orders",
        "broker": "a",
        "queue_id": 3,
        "queue_offset": 5,
        "state": 1,
        "tries": 2,
        "seen": after(1),
        "changed": after(2),
        "until": after(9),
        "crc": 17,
        "digest_1": 11,
        "digest_2": -12,
        "log_offset": 4,
        "size": 77,
        "required": "payments,audit",
    }


@pytest.mark.parametrize(
    ("values", "state"),
    [
        *(({"status": status}, status) for status in (0, 1, 2)),
        *(({"status": status}, ODD) for status in (-1, 3, 4, 300)),
        ({"status": 2, "content_size": 0}, TOMBSTONE),
        ({"status": 1, "content_size": 0}, 1),
        ({"status": 2, "content_size": 1}, 2),
    ],
)
def test_a_status_that_we_never_write_is_odd_and_a_voided_stub_without_content_a_tombstone(
    values: dict[str, Any], state: int
) -> None:
    (event,) = stub_events(batch(STUBS, a_stub(**values))).to_pylist()
    assert event["state"] == state


def test_groups_that_gave_a_stub_up_are_its_reason() -> None:
    rows = [a_stub(given_up_by=names) for names in ("", "audit", "audit,payments")]
    events = stub_events(batch(STUBS, *rows))
    assert events["reason"].to_pylist() == [None, "audit", "audit,payments"]


def test_a_consume_log_as_an_event() -> None:
    (event,) = log_events(batch(LOGS, a_log())).to_pylist()
    assert event == NOTHING | {
        "id": PACKED,
        "kind": LOG,
        "topic": "orders",
        "consumer_group": "payments",
        "broker": "a",
        "queue_id": 3,
        "queue_offset": 5,
        "state": 1,
        "tries": 2,
        "seen": after(1),
        "changed": after(2),
        "until": after(3),
    }


def test_a_lease_without_an_owner_is_none() -> None:
    """It is the time at which the next attempt is expected."""
    events = log_events(batch(LOGS, a_log(owner=None), a_log()))
    assert events["until"].to_pylist() == [None, after(3)]


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ({}, 0),
        ({"in_doubt": None}, 0),
        ({"in_doubt": True}, IN_DOUBT),
        ({"duplicate_of": "X"}, DUPLICATE),
        ({"duplicate_of": M}, DUPLICATE | SKIPPED),
        ({"confirm_to": "a topic"}, TELLS),
        ({"in_doubt": True, "confirm_to": "a topic"}, IN_DOUBT | TELLS),
        ({"in_doubt": True, "duplicate_of": "X", "confirm_to": "t"}, IN_DOUBT | DUPLICATE | TELLS),
    ],
)
def test_the_marks_of_a_consume_log(values: dict[str, Any], marks: int) -> None:
    events = log_events(batch(LOGS, a_log(**values), a_log()))
    assert events["marks"].to_pylist() == [marks, 0]


def test_a_notice_as_an_event_has_a_time_of_consumption_only_when_it_was_consumed() -> None:
    told = {"message_id": M, "consumer_group": "payments", "create_date": after(1)}
    rows = [told | {"state": state, "update_date": after(2)} for state in (1, 0)]
    consumed, received = notice_events(batch(NOTICES, *rows)).to_pylist()
    known = {"id": PACKED, "kind": TOLD, "consumer_group": "payments", "seen": after(1)}
    assert consumed == NOTHING | known | {"state": 1, "changed": after(2)}
    assert received == NOTHING | known | {"state": 0}


def test_a_record_as_an_event() -> None:
    (event,) = record_events(batch(RECORDS, a_record()), "b").to_pylist()
    assert event == NOTHING | {
        "id": PACKED,
        "kind": RECORD,
        "topic": "orders",
        "consumer_group": "payments",
        "broker": "b",
        "queue_id": 3,
        "queue_offset": 5,
        "state": ROLES.index(FIRST),
        "tries": 2,
        "seen": after(2),
        "changed": after(1),
        "until": after(9),
        "crc": 17,
        "digest_1": 11,
        "digest_2": -12,
        "log_offset": 1_000,
        "size": 200,
        "queue_topic": "orders-2",
        "reason": "why",
    }


def test_system_records_are_left_out_and_damage_has_no_id() -> None:
    roles = (SYSTEM, DAMAGED, RETRY, SYSTEM, STRANDED)
    events = record_events(batch(RECORDS, *(a_record(role=role) for role in roles)), "")
    told = [(event["id"], ROLES[event["state"]]) for event in events.to_pylist()]
    assert told == [(None, DAMAGED), (PACKED, RETRY), (PACKED, STRANDED)]


def test_notices_between_databases_are_no_messages_of_the_application() -> None:
    topics = ["orders", NOTICE_TOPIC_PREFIX + "shop", None, "orders"]
    logs = log_events(batch(LOGS, *(a_log(topic=topic) for topic in topics)))
    records = record_events(batch(RECORDS, *(a_record(topic=topic) for topic in topics)), "")
    for events in (logs, records):
        assert events["topic"].to_pylist() == ["orders", None, "orders"]


def test_a_digest_is_read_from_the_middle_of_a_column_and_may_be_missing() -> None:
    digests = [bytes(16), DIGEST, None, DIGEST[8:] + DIGEST[:8]]
    rows = batch(STUBS, *(a_stub(message_digest=digest) for digest in digests))
    for skipped in (0, 1, 2):
        events = stub_events(rows.slice(skipped))
        assert events["digest_1"].to_pylist() == [0, 11, None, -12][skipped:]
        assert events["digest_2"].to_pylist() == [0, -12, None, 11][skipped:]
    older = stub_events(rows.drop_columns(["message_digest"]))
    assert older["digest_1"].null_count == older["digest_2"].null_count == 4
