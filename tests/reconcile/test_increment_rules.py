"""What one increment carries to the next, and how that one completes what it has read."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.reconcile.judging import event
from tests.reconcile.ledgers import NOW, message_id
from tests.reconcile.test_increments import rows_of

from reliable_mq.reconcile.brokers.log_roles import DEAD, FIRST
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, events_of
from reliable_mq.reconcile.judgement.events import (
    CARRIED,
    CONFIRMED,
    CONSUMED,
    DUPLICATE,
    IN_DOUBT,
    LOG,
    RECEIVED,
    RECORD,
    ROLES,
    STUB,
    TELLS,
    TOLD,
    UNCONFIRMED,
    VOIDED,
    unpacked_ids,
)
from reliable_mq.reconcile.judgement.increments import Increment, carried, completed
from reliable_mq.reconcile.judgement.verdict import Verdict

SINCE = NOW - timedelta(hours=1)
BEFORE, LONG_BEFORE = SINCE - timedelta(microseconds=1), SINCE - timedelta(hours=5)
MANAGED = frozenset({"orders"})
M = message_id(1, LONG_BEFORE)
PASSED_ON: dict[str, Any] = {"marks": CARRIED}
FIRST_ROW: dict[str, Any] = {"state": ROLES.index(FIRST), "log_offset": 1_000, "queue_id": 0}


def of(kind: int, identity: Any = M, **columns: Any) -> dict[str, Any]:
    """Return an event as an increment reads it, with its id as text."""
    told: dict[str, Any] = {"seen": LONG_BEFORE, "changed": LONG_BEFORE, "id": identity}
    if kind in (LOG, TOLD):
        told["consumer_group"] = "payments"
    return event(kind, identity) | (FIRST_ROW if kind == RECORD else {}) | told | columns


def told(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the events of rows, with their ids as texts."""
    batches = [events_of(batch) for batch in rows.combine_chunks().to_batches()]
    events = [each for batch in batches for each in batch.to_pylist()]
    ids = unpacked_ids(pa.array([each["id"] for each in events], pa.binary())).to_pylist()
    return [each | {"id": identity} for each, identity in zip(events, ids, strict=True)]


class Tables:
    """Answers for the tables, and keeps what it was asked."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)
        self.asked: list[str] = []

    def look_up(self, ids: pa.Array) -> pa.Table:
        self.asked += unpacked_ids(ids).to_pylist()
        return rows_of([row for row in self.rows if row["id"] in self.asked])


def complete(
    *events: dict[str, Any],
    tables: Tables | None = None,
    since: datetime | None = SINCE,
    mark: datetime | None = None,
) -> list[dict[str, Any]]:
    increment = Increment(since, NOW, mark, MANAGED)
    rows = completed(rows_of(list(events)), increment, (tables or Tables()).look_up)
    assert rows.schema == EVENT_ROWS
    return told(rows)


def in_order(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("id", "kind", "seen", "consumer_group", "marks")
    return sorted(events, key=lambda each: [str(each[name])[:19] for name in names])


def test_the_first_increment_completes_nothing() -> None:
    tables = Tables()
    events = [of(RECORD), of(STUB, state=CONFIRMED, marks=CARRIED)]
    assert complete(*events, tables=tables, since=None) == events
    assert tables.asked == []


@pytest.mark.parametrize(
    ("kind", "columns", "is_dropped"),
    [
        (STUB, {"state": UNCONFIRMED, "changed": BEFORE}, True),
        (STUB, {"state": CONFIRMED, "changed": BEFORE}, False),
        (STUB, {"state": VOIDED, "changed": BEFORE}, False),
        (STUB, {"state": CONFIRMED, "changed": SINCE}, True),
        (LOG, {"state": RECEIVED, "changed": None}, True),
        (LOG, {"state": CONSUMED, "changed": BEFORE}, False),
        (LOG, {"state": CONSUMED, "changed": SINCE}, True),
        (TOLD, {"state": RECEIVED, "changed": None}, False),
        (TOLD, {"state": CONSUMED, "changed": BEFORE}, False),
        (TOLD, {"state": CONSUMED, "changed": SINCE}, True),
        (RECORD, {"changed": SINCE}, False),
    ],
)
def test_a_carried_row_that_the_tables_would_have_given_again_is_gone(
    kind: int, columns: dict[str, Any], is_dropped: bool
) -> None:
    """It was removed meanwhile, or it was read anew."""
    row, other = of(kind, **columns, **PASSED_ON), of(RECORD, log_offset=2_000, **PASSED_ON)
    assert complete(row, other) == ([other] if is_dropped else [row, other])


def test_a_stub_that_was_read_replaces_its_carried_row_and_no_twin_of_another_database() -> None:
    read = of(STUB, state=CONFIRMED, changed=SINCE)
    before = of(STUB, state=CONFIRMED, changed=BEFORE, **PASSED_ON)
    twin = before | {"seen": LONG_BEFORE - timedelta(seconds=1)}
    other = before | {"id": message_id(2, LONG_BEFORE)}
    tables = Tables()
    found = complete(read, before, twin, other, tables=tables)
    assert in_order(found) == in_order((read, twin, other))
    assert tables.asked == []


def test_a_notice_that_was_read_replaces_the_carried_one_of_its_group() -> None:
    read = of(TOLD, state=CONSUMED, changed=SINCE)
    before = of(TOLD, state=RECEIVED, changed=BEFORE, **PASSED_ON)
    other = before | {"consumer_group": "audit"}
    stub = of(STUB, state=CONFIRMED, **PASSED_ON)
    found = complete(read, before, other, stub)
    assert in_order(found) == in_order((read, other, stub))
    log = of(LOG, state=CONSUMED, changed=BEFORE, **PASSED_ON)
    assert complete(read | {"kind": LOG}, log, stub)[1:] == [log, stub], "logs of two databases"


@pytest.mark.parametrize(
    ("columns", "is_asked"),
    [
        ({"state": CONFIRMED, "changed": SINCE}, True),
        ({"state": CONFIRMED, "changed": SINCE, "seen": BEFORE}, True),
        ({"state": CONFIRMED, "changed": SINCE, "seen": SINCE}, False),
        ({"state": UNCONFIRMED, "changed": SINCE}, True),
        # A long transaction committed it late.
        ({"state": UNCONFIRMED, "changed": BEFORE, "seen": BEFORE}, False),
    ],
)
def test_the_tables_are_asked_for_an_old_stub_whose_verdicts_were_final(
    columns: dict[str, Any], is_asked: bool
) -> None:
    tables = Tables(of(STUB, **columns, tries=7), of(LOG, state=CONSUMED))
    complete(of(STUB, **columns), tables=tables)
    assert tables.asked == [M] * is_asked


@pytest.mark.parametrize(
    ("events", "is_asked"),
    [
        ([of(RECORD)], True),
        ([of(RECORD, topic="weather")], False),
        ([of(TOLD, topic=None, changed=SINCE)], True),
        ([of(RECORD, topic="weather"), of(LOG, changed=SINCE)], True),
        ([of(LOG, changed=SINCE, marks=IN_DOUBT | DUPLICATE | TELLS)], True),
        ([of(RECORD), of(STUB, seen=SINCE, changed=SINCE)], False),
        ([of(RECORD), of(RECORD, log_offset=2_000, **PASSED_ON)], False),
    ],
)
def test_the_tables_are_asked_for_a_message_of_a_managed_topic_without_its_stub(
    events: list[dict[str, Any]], is_asked: bool
) -> None:
    tables = Tables()
    complete(*events, tables=tables)
    assert tables.asked == [M] * is_asked


def test_what_the_tables_say_replaces_what_was_read_of_them_and_no_record() -> None:
    """Given a consume log and a record of an old message, of which the tables have everything."""
    whole = [of(STUB, state=CONFIRMED, seen=SINCE), of(LOG, state=CONSUMED, tries=3)]
    record, other = of(RECORD), of(RECORD, message_id(2), topic="weather")
    found = complete(of(LOG, state=CONSUMED, tries=2), record, other, tables=Tables(*whole))
    assert in_order(found) == in_order([record, other, *whole])


def test_the_records_of_a_final_message_are_remembered_by_the_place_in_its_stub() -> None:
    place = {"broker": "a", "queue_id": 3, "queue_offset": 5, "crc": 17, "size": 77}
    place |= {"digest_1": 11, "digest_2": 12}
    stub = of(STUB, state=CONFIRMED, changed=SINCE, tries=2, until=NOW, **place)
    stub |= {"required": "payments", "reason": "audit", "log_offset": 9}
    *rest, record = complete(stub, tables=Tables(stub))
    assert rest == [stub]
    empty = dict.fromkeys(record)
    assert record == empty | place | {
        "id": M,
        "kind": RECORD,
        "state": ROLES.index(FIRST),
        "marks": 0,
        "tries": 0,
        "topic": "orders",
        "queue_topic": "orders",
    }
    for young in ({"seen": SINCE}, PASSED_ON, {"state": UNCONFIRMED, "changed": BEFORE}):
        told_again = complete(stub | young, of(RECORD, **PASSED_ON), tables=Tables())
        assert [each["kind"] for each in told_again].count(RECORD) == 1


@pytest.mark.parametrize(
    ("event_of", "is_dropped"),
    [
        (of(RECORD, message_id(1, BEFORE)), True),
        (of(RECORD, message_id(1, SINCE + timedelta(milliseconds=1))), False),
        (of(RECORD, message_id(1, BEFORE), **PASSED_ON), False),
        (of(STUB, "a name", seen=BEFORE, state=UNCONFIRMED), True),
        (of(STUB, "a name", seen=SINCE, state=UNCONFIRMED), False),
        (of(RECORD, "a name"), False),
    ],
)
def test_a_new_message_from_before_the_mark_of_retention_is_left_out(
    event_of: dict[str, Any], is_dropped: bool
) -> None:
    """Its other rows were removed. A message without a time is kept."""
    other = of(RECORD, message_id(2, NOW))
    assert complete(event_of, other, mark=SINCE) == ([other] if is_dropped else [event_of, other])
    assert complete(event_of, other) == [event_of, other]


def carry(verdict: str, *events: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is carried of a message with a verdict, beside one that is settled."""
    settled = of(STUB, message_id(2, LONG_BEFORE), state=CONFIRMED)
    verdicts = pa.table({"message_id": [M, settled["id"]], "verdict": [verdict, "settled"]})
    return told(carried(rows_of([*events, settled]), verdicts, SINCE))


@pytest.mark.parametrize("verdict", Verdict)
def test_a_message_is_carried_until_its_verdict_is_final(verdict: Verdict) -> None:
    events = [of(STUB, state=CONFIRMED), of(LOG, state=CONSUMED, marks=IN_DOUBT), of(RECORD)]
    found = carry(verdict, *events)
    if verdict in ("settled", "voided", "unmanaged"):
        assert found == []
    else:
        assert found == [each | {"marks": each["marks"] | CARRIED} for each in events]


@pytest.mark.parametrize(
    ("row", "is_carried"),
    [
        (of(STUB, state=UNCONFIRMED), True),
        (of(STUB, state=CONFIRMED, changed=BEFORE), False),
        (of(STUB, state=CONFIRMED, changed=SINCE), True),
        (of(LOG, state=RECEIVED, changed=None), True),
        (of(LOG, state=CONSUMED, changed=BEFORE), False),
        (of(LOG, state=CONSUMED, changed=SINCE), True),
        (of(TOLD, state=RECEIVED, changed=None), False),
        (of(TOLD, state=CONSUMED, changed=SINCE), True),
        (of(RECORD, changed=NOW), False),
        # No table names the group of this copy.
        (of(RECORD, state=ROLES.index(DEAD), consumer_group="audit"), True),
        (of(RECORD, state=ROLES.index(DEAD), consumer_group="payments"), False),
    ],
)
def test_a_settled_message_is_carried_when_it_will_be_read_again_or_only_its_copy_has_a_group(
    row: dict[str, Any], is_carried: bool
) -> None:
    consumed = of(LOG, state=CONSUMED)
    found = carry("settled", row, consumed)
    assert found == ([row | PASSED_ON, consumed | PASSED_ON] if is_carried else [])


def test_the_consume_log_of_another_message_names_no_group_of_this_one() -> None:
    copy = of(RECORD, state=ROLES.index(DEAD), consumer_group="payments")
    elsewhere = of(LOG, message_id(3), state=CONSUMED)
    assert carry("settled", copy, elsewhere) == [copy | PASSED_ON]
    increment_summary = of(TOLD, state=CONSUMED, topic=None)
    assert carry("settled", copy, increment_summary) == []
