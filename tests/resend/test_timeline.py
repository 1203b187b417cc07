"""The life of one message, as every ledger tells it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import MetaData, insert
from tests.console.planted_rows import run as planted_run
from tests.resend.worlds import MAX, World

from reliable_mq.database.row_values import LogState, StubStatus
from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.escalate.escalation import Escalation, EscalationKind
from reliable_mq.escalate.sql_history import SqlHistory, readable
from reliable_mq.escalate.timeline import MessageHistory, _of_stub_state, merged, timeline
from reliable_mq.message import MessageQueue, ReceivedMessage

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def history_of(world: World) -> SqlHistory:
    database = world.database
    return SqlHistory(
        stubs=database.stubs,
        logs=database.logs,
        confirmations=database.confirmations,
        escalations=database.escalations,
        alerts=database.alerts,
        notifiers=database.notifiers,
        audit=database.audit,
        findings=finding_table(MetaData(), "rmq_"),
        runs=run_table(MetaData(), "rmq_"),
    )


def record(topic: str, seconds: float, **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic=topic,
        body=b"",
        queue=MessageQueue(topic, "broker-a", 1),
        queue_offset=5,
        store_time_ms=int(seconds * 1000),
        properties=properties,
    )


def told(world: World, message_id: str, *records: ReceivedMessage) -> list[Any]:
    with world.database.engine.begin() as connection:
        history = history_of(world).read(connection, message_id)
    return [
        (each.time and (each.time - EPOCH) / timedelta(seconds=1), each.ledger, each.what)
        for each in timeline(history, records)
    ]


def test_every_ledger_tells_what_it_knows_in_the_order_of_time(world: World) -> None:
    # Given a message that one group consumed and one gave up, told by mail, then retried by hand
    stub = world.sent("a", groups=("g", "h"))
    world.change(stub, message_key="17")
    world.log(stub, group="h")
    table = world.database.logs
    with world.database.engine.begin() as connection:
        connection.execute(
            table.update().values(consume_date=utc_datetime(103.0), create_date=utc_datetime(103.0))
        )
    world.log(stub, group="g", state=0, until=130.0)
    letter = Escalation(
        kind=EscalationKind.DEAD_LETTER,
        message_id=stub,
        topic="orders",
        consumer_group="g",
        reason="no",
    )
    findings = finding_table(MetaData(), "rmq_")
    findings.create(world.database.engine, checkfirst=True)
    with world.database.engine.begin() as connection:
        world.escalations.escalate(connection, [letter], 110.0)
        finding = {
            "run_id": "run-1",
            "message_id": stub,
            "consumer_group": "g",
            "topic": "orders",
            "verdict": "dead-lettered",
            "evidence": "{}",
            "create_date": utc_datetime(112.0),
        }
        connection.execute(insert(findings), finding)
        connection.execute(insert(run_table(MetaData(), "rmq_")), planted_run(run_id="run-1"))
    world.alerts().run_once(111.0)
    with world.database.engine.begin() as connection:
        world.hands.retry(connection, [stub], "ann", "fixed", 120.0)
    in_topic = record("orders", 101.0)
    dead = record("%DLQ%g", 109.0, DEAD_LETTER_REASON="no")

    digest = world.notifier.digests[0].digest_id
    assert told(world, stub, dead, in_topic) == [
        (100.0, "stub", "committed: topic orders, key 17 for g,h"),
        (100.0, "log of g", "first received"),
        (101.0, "broker", "stored in orders: broker-a, queue 1, offset 5"),
        (103.0, "log of h", "consumed, attempt 1"),
        (109.0, "broker", "dead letter of g: no"),
        (110.0, "escalation", "dead letter of g: no"),
        (111.0, "alert", f"sent by mail, digest {digest}"),
        (112.0, "reconcile", "found dead-lettered for g, in run run-1"),
        (120.0, "audit", "stub retry by ann: fixed"),
        (120.0, "stub", "UNCONFIRMED, sent 0 times: retry by hand: fixed"),
        (120.0, "stub", "to be checked again by the resend scheduler"),
        (120.0, "escalation", "closed by retry: dead letter of g"),
        (None, "log of g", "attempt 0 failed; may be tried again"),
    ]


def test_what_waits_and_what_could_not_be_told_is_said(world: World) -> None:
    stub = world.write("a", deliver_time=104.0)
    world.change(stub, count=MAX, note="no route")
    world.scheduler.run_once(105.0)
    world.notifier.is_down = True
    world.alerts().run_once(106.0)
    world.log(stub, group="g", state=0, until=130.0)
    with world.database.engine.begin() as connection:
        connection.execute(world.database.logs.update().values(owner="somebody"))

    lines = told(world, stub)

    assert (104.0, "stub", "delivery time of the message") in lines
    assert (
        130.0,
        "log of g",
        "attempt 1 is running, or its process died: its lease ends at this time",
    ) in lines
    said = "not sent by mail yet, 1 tries failed: OSError: mail server"
    assert (111.0, "alert", said) in lines
    assert lines[-1] == (None, "stub", "waits for a person: it has used up its sends")


def test_what_waits_here_for_its_time_says_when_it_is_sent_and_when_it_arrives(
    world: World,
) -> None:
    stub = world.write("a", deliver_time=9_000.0)
    world.change(stub, owner=None, lease_until=None, missed=True, resend_time=utc_datetime(4_000.0))

    lines = told(world, stub)

    assert (9_000.0, "stub", "delivery time of the message") in lines
    waits = "to be sent, and to wait at the broker for its time; until then it waits here"
    assert (4_000.0, "stub", waits) in lines


def test_a_message_that_no_table_knows_has_no_history(world: World) -> None:
    with world.database.engine.begin() as connection:
        history = history_of(world).read(connection, "F" * 32)

    assert history.is_empty
    assert timeline(history) == []


def test_a_content_that_is_no_text_is_shown_all_the_same(world: World) -> None:
    stub = world.write("a")
    world.change(stub, content=b"\xff{}")

    with world.database.engine.begin() as connection:
        shown = readable(history_of(world).read(connection, stub))

    assert (shown["content"], shown["status"]) == ("\\xff{}", "UNCONFIRMED")


def test_what_other_databases_told_is_part_of_it(world: World) -> None:
    stub = world.sent("a", groups=("g", "h"))
    rows = [
        {
            "message_id": stub,
            "consumer_group": group,
            "state": state,
            "notices": 1,
            "create_date": utc_datetime(103.0),
            "update_date": utc_datetime(104.0),
        }
        for group, state in (("g", 1), ("h", 0))
    ]
    with world.database.engine.begin() as connection:
        connection.execute(insert(world.database.confirmations), rows)

    lines = told(world, stub)

    assert (104.0, "notice", "from the database of g: consumed") in lines
    assert (104.0, "notice", "from the database of h: an attempt failed") in lines
    with world.database.engine.begin() as connection:
        history = history_of(world).read(connection, stub)
    assert timeline(merged([MessageHistory(), history])) == timeline(history)
    assert not history.is_empty


def test_rows_that_somebody_tampered_with_are_shown_as_they_are(world: World) -> None:
    stub = world.write("a")
    with world.database.engine.begin() as connection:
        world.hands.retry(connection, [stub], "ann", "fixed", 120.0)
        connection.execute(world.database.audit.update().values(detail="{no json"))
    world.change(stub, status=7)
    world.log(stub, state=5)

    lines = told(world, stub)

    assert (120.0, "stub", "status 7, sent 0 times: retry by hand: fixed") in lines
    assert (120.0, "audit", "stub retry by ann: {no json") in lines


def test_an_attempt_in_doubt_is_not_said_to_have_had_no_effect(world: World) -> None:
    stub = world.write("a")
    logs = world.database.logs
    world.log(stub, group="g", state=1, until=None)

    def consumed(**values: object) -> str:
        at = utc_datetime(103.0)
        with world.database.engine.begin() as connection:
            connection.execute(logs.update().values(consume_date=at, create_date=at, **values))
        return str(next(what for _, ledger, what in told(world, stub) if ledger == "log of g"))

    assert consumed(attempt=2) == "consumed, attempt 2 (attempt 1 had no effect in this database)"
    assert consumed(attempt=2, in_doubt=True) == (
        "consumed, attempt 2 (attempt 1 is in doubt: its effect elsewhere may have happened)"
    )
    assert consumed(attempt=3).endswith(
        "(one of attempts 1 to 2 is in doubt: its effect elsewhere may have happened)"
    )


def test_a_confirmed_stub_without_a_noted_send_is_explained(world: World) -> None:
    stub = world.write("a")
    world.change(stub, status=1)
    said = [what for _, ledger, what in told(world, stub) if ledger == "stub"]
    assert "no send is noted here: dlq retry sent it, or the process died" in said[-1]


def test_what_happened_in_one_moment_is_in_the_order_of_cause_and_effect() -> None:
    """One transaction writes that a message is consumed, and confirms its stub: in which order?"""
    moment = datetime(2026, 11, 28, 10, 0, 0, 123_456, tzinfo=UTC)
    stub = {
        "create_date": moment,
        "update_date": moment + timedelta(microseconds=300),
        "deliver_time": None,
        "required_groups": "g",
        "message_key": None,
        "topic": "orders",
        "count": 1,
        "status": StubStatus.CONFIRMED,
        "broker_name": None,
        "note": None,
    }
    log = {
        "consumer_group": "g",
        "attempt": 1,
        "create_date": moment,
        "consume_date": moment + timedelta(milliseconds=4),
        "failures": None,
        "message_id": "m",
        "state": LogState.CONSUMED,
        "owner": None,
        "duplicate_of": None,
    }
    stored = record("orders", int((moment - EPOCH) / timedelta(milliseconds=1)) / 1000)

    entries = timeline(MessageHistory(stub=stub, logs=[log]), [stored])

    assert [(each.ledger, each.what.split()[0]) for each in entries] == [
        ("stub", "committed:"),
        ("broker", "stored"),
        ("log of g", "first"),
        ("log of g", "consumed,"),
        ("stub", "CONFIRMED,"),
    ]


def of_stub(**values: Any) -> list[str]:
    row = {
        "create_date": utc_datetime(1.0),
        "update_date": utc_datetime(2.0),
        "topic": "orders",
        "message_key": "",
        "required_groups": "",
        "note": "no route",
        "deliver_time": None,
        "resend_time": None,
        "given_up": False,
        "count": 2,
        "broker_name": None,
        "queue_id": 0,
        "offset": 5,
        "status": StubStatus.UNCONFIRMED,
    }
    return [each.what for each in _of_stub_state(row | values)]


def test_what_no_broker_acknowledged_was_tried_and_not_sent() -> None:
    assert of_stub()[0] == (
        "UNCONFIRMED, a send was tried 2 times, and no broker has acknowledged one: no route"
    )


def test_the_note_of_a_settled_message_is_of_an_earlier_moment() -> None:
    assert of_stub(status=StubStatus.CONFIRMED, broker_name="b")[0] == (
        "CONFIRMED, sent 2 times, acknowledged at b, queue 0, offset 5; noted before: no route"
    )


DOUBT = "is in doubt: its effect elsewhere may have happened"


@pytest.mark.parametrize(
    ("attempt", "in_doubt", "after"),
    [
        (0, False, "before an attempt counted"),
        (1, False, "after attempt 1"),
        (6, False, "after attempts 1 to 6: none of them had an effect in this database"),
        (1, True, f"after attempt 1, which {DOUBT}"),
        (6, True, f"after attempts 1 to 6, one of them {DOUBT}"),
    ],
)
def test_no_attempt_before_a_skip_is_said_to_have_had_an_effect(
    attempt: int, in_doubt: bool, after: str
) -> None:
    skipped = {
        "consumer_group": "g",
        "message_id": "M",
        "state": 1,
        "duplicate_of": "M",
        "note": "skipped by ada: refunded",
        "attempt": attempt,
        "in_doubt": in_doubt,
        "create_date": utc_datetime(1.0),
        "consume_date": utc_datetime(9.0),
    }
    said = timeline(MessageHistory(logs=[skipped]))[-1].what
    assert said == f"skipped by ada: refunded ({after}); the handler has no effect"
