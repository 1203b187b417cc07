"""What a person does to stubs: which ones are meant, what becomes of them, and who did it."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, insert, text, update
from tests.resend.worlds import MAX, World

from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_types import plain_text, utc_datetime
from reliable_mq.errors import UsageError
from reliable_mq.escalate import sql_operator_actions
from reliable_mq.escalate.sql_audit import AuditEntry
from reliable_mq.escalate.sql_dead_letters import SqlDeadLetters
from reliable_mq.escalate.sql_operator_actions import OperatorActions
from reliable_mq.escalate.sql_stub_list import SqlStubList
from reliable_mq.escalate.stub_filter import StubFilter
from reliable_mq.outbox.stub import StubEvent

NAMES = ("a", "b", "c", "d")
LOG = ("message_id", "consumer_group", "state", "attempt")


def audits(world: World) -> list[tuple[str, str, str, int]]:
    return [
        (row["actor"], row["action"], row["message_id"].rstrip("0"), row["changed"])
        for row in world.rows(world.database.audit)
    ]


def test_a_person_may_send_again_or_void(world: World) -> None:
    again, never, settled = world.write("a"), world.write("b"), world.write("c")
    for stub in (again, never):
        world.change(stub, count=MAX)
    world.change(settled, status=1, resend_time=None)
    world.scheduler.run_once(105.0)
    world.log(again, state=0)
    unknown = "F" * 32

    with world.database.engine.begin() as connection:
        retried = world.hands.retry(connection, [again, settled, unknown], "ann", "fixed", 200.0)
        voided = world.hands.void(connection, [never], "bob", "cancelled", 200.0)
        twice = world.hands.void(connection, [never], "bob", "twice", 201.0)

    assert retried == {again: True, settled: False, unknown: False}
    assert (voided, twice) == ({never: True}, {never: False})
    assert world.scheduler.run_once(200.0).sent == 1
    assert world.broker.sent == ["a"]
    row = world.row(never)
    assert (row["status"], row["note"]) == (2, "void by hand: cancelled")
    assert world.open_escalations() == []
    (log,) = world.rows(world.database.logs)
    assert log["attempt"] == 0  # or the consumer would give it up unread
    assert sorted(audits(world)) == [
        ("ann", "stub retry", "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF", 0),
        ("ann", "stub retry", "a", 1),
        ("ann", "stub retry", "c", 0),
        ("bob", "stub void", "b", 0),
        ("bob", "stub void", "b", 1),
    ]
    detail = json.loads(world.rows(world.database.audit)[0]["detail"])
    assert detail["why"] == "fixed"
    assert detail["before"]["status"] == "UNCONFIRMED"
    assert detail["before"]["count"] == MAX


def test_any_text_stands_in_the_audit_on_each_database(world: World) -> None:
    odd = '\0 "\\ \ud800 é 😀 \u202eשלום {"a": [1]}\r\n\t ' + "x" * 200
    detail = {"why": odd, "at": utc_datetime(7.5), "none": None, "flag": True}
    names = {"a": None, odd: "r" * 32, "": ""}
    acts = [
        AuditEntry(
            actor=odd,
            action="stub retry",
            message_id=name,
            changed=bool(name),
            detail=detail,
            run_id=number,
        )
        for name, number in names.items()
    ]
    with world.database.engine.begin() as connection:
        world.audit.write_acts(connection, acts, 200.25)
        world.audit.write_acts(connection, [], 201.0)
    rows = world.rows(world.database.audit)
    assert [(row["message_id"], row["run_id"], row["changed"]) for row in rows] == [
        (plain_text(name)[:64], number, bool(name)) for name, number in names.items()
    ]
    assert {(row["actor"], row["create_date"]) for row in rows} == {
        (plain_text(odd)[:127], utc_datetime(200.25))
    }
    for row in rows:
        assert json.loads(row["detail"]) == detail | {"at": str(detail["at"])}


@pytest.mark.parametrize("verb", ["stub", "dlq"])
def test_a_message_that_comes_again_remembers_no_end_of_its_attempts(
    world: World, verb: str
) -> None:
    """If those of its next life do not end, the reason of the first would be told."""
    stub, logs = world.sent("a"), world.database.logs
    world.log(stub, state=0)
    with world.database.engine.begin() as connection:
        connection.execute(update(logs).values(note="no such customer", attempt=3))
        if verb == "stub":
            world.hands.retry(connection, [stub], "ann", "", 200.0)
        else:
            tables = world.database.stubs, logs
            dialect = world.database.dialect
            letters = SqlDeadLetters(*tables, world.escalations, world.audit, dialect)
            letters.begin(connection, "g", [stub], retry_id="r1", actor="ann", why="", now=200.0)

    (row,) = world.rows(logs)
    assert (row["attempt"], row["note"]) == (0, None)


def consumed(connection: Connection, world: World, message_id: str, group: str) -> None:
    row = {"consumer_group": group, "message_id": message_id, "topic": "orders", "attempt": 1}
    place = {"broker_name": "broker-a", "queue_id": 1, "offset": 5, "state": 1}
    at = {"create_date": utc_datetime(100.0), "consume_date": utc_datetime(100.0)}
    connection.execute(insert(world.database.logs).values(row | place | at))


def test_a_retry_does_not_wait_for_a_consumer_that_will_wait_for_the_stub(world: World) -> None:
    """Given a consumer that has inserted its row and not committed, and a failed attempt of another
    group; when a person retries; then neither waits for the other, and the failed one is forgotten.

    MySQL lets an update wait for rows that are not committed, and ends one of two as a deadlock.
    """
    engine = world.database.engine
    if engine.dialect.name == "sqlite":
        pytest.skip("one transaction writes at a time")
    done, other = world.sent("a", groups=("g", "h")), world.sent("b", groups=("g", "h"))
    for stub in (done, other):
        world.log(stub, group="h", state=0)

    with engine.connect() as consumer, engine.connect() as person:
        for connection in (consumer, person):
            impatiently(connection)
        consumed(consumer, world, done, "g")
        retried = world.hands.retry(person, [done, other], "ann", "", 200.0)
        person.commit()
        confirmation_of(world.database).confirm(consumer, "g", [done], 201.0)
        consumer.commit()

    assert retried == {done: True, other: True}
    logs = [tuple(row[name] for name in LOG) for row in world.rows(world.database.logs)]
    assert sorted(logs) == [(done, "g", 1, 1), (done, "h", 0, 0), (other, "h", 0, 0)]


def impatiently(connection: Connection) -> None:
    """Let a wait for a lock fail soon, where the server would wait for a minute or for ever."""
    seconds = {"postgresql": "lock_timeout = '2s'"}
    setting = seconds.get(connection.dialect.name, "SESSION innodb_lock_wait_timeout = 2")
    connection.execute(text(f"SET {setting}"))


def test_what_is_undone_leaves_neither_change_nor_audit(world: World) -> None:
    stub = world.write("a")
    with world.database.engine.connect() as connection:
        world.hands.void(connection, [stub], "ann", "", 200.0)
        connection.rollback()

    assert (world.row(stub)["status"], audits(world)) == (0, [])


def test_a_voided_stub_may_be_sent_after_all(world: World) -> None:
    stub = world.write("a")
    with world.database.engine.begin() as connection:
        world.hands.void(connection, [stub], "ann", "", 200.0)
        world.hands.retry(connection, [stub], "ann", "", 201.0)

    assert (world.row(stub)["status"], world.scheduler.run_once(201.0).sent) == (0, 1)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "abcd"),
        ({"status": StubStatus.CONFIRMED}, "b"),
        ({"escalated": True}, "cd"),
        ({"topic": "invoices"}, "c"),
        ({"tag": "paid"}, "a"),
        ({"key": "17"}, "d"),
        ({"ordering_key": "k"}, "b"),
        ({"group": "g"}, "acd"),
        ({"group": "h"}, "a"),
        ({"group": "g%"}, ""),
        ({"since": datetime(2026, 1, 2, tzinfo=UTC)}, "cd"),
        ({"until": datetime(2026, 1, 2, tzinfo=UTC)}, "ab"),
        ({"note": "50%"}, "a"),
        ({"note": "50_"}, ""),
        ({"escalated": True, "topic": "orders"}, "d"),
    ],
)
def test_a_filter_finds_the_stubs_that_fit_all_of_it(
    world: World, wanted: dict[str, Any], found: str
) -> None:
    ids = {name: world.write(name) for name in NAMES}
    days = dict(zip(NAMES, (1, 1, 2, 3), strict=True))
    world.change(ids["a"], tag="paid", required_groups="g,h", note="at 50% of it")
    world.change(ids["b"], status=1, resend_time=None, ordering_key="k", note="at 50 of it")
    world.change(ids["c"], topic="invoices", resend_time=None)
    world.change(ids["d"], message_key="17", resend_time=None)
    world.log(ids["b"])
    for name in NAMES:
        world.change(ids[name], create_date=datetime(2026, 1, days[name], tzinfo=UTC))
    stubs = SqlStubList(world.database.stubs, world.database.logs, StubFilter(**wanted))

    with world.database.engine.begin() as connection:
        newest = stubs.newest(connection, 10)
        first, at = stubs.page(connection, 0, limit=2)
        rest, _ = stubs.page(connection, at, limit=10)
        count = stubs.count(connection)

    names = [row["message_id"].rstrip("0") for row in newest]
    assert "".join(sorted(names)) == found
    assert names == sorted(names, reverse=True)
    assert [row["message_id"] for row in (*first, *rest)] == [ids[name] for name in sorted(found)]
    assert count == len(found)
    assert StubFilter(**wanted).is_open == (not wanted)


def test_times_of_a_stub_are_utc(world: World) -> None:
    world.write("a")
    stubs = SqlStubList(world.database.stubs, world.database.logs, StubFilter())
    with world.database.engine.begin() as connection:
        (row,) = stubs.newest(connection, 1)
    assert row["create_date"] == utc_datetime(100.0)
    assert row["status"] == "UNCONFIRMED"


def test_work_on_many_stubs_that_ends_in_the_middle_has_done_whole_parts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_operator_actions, "PAGE_ROWS", 2)
    stubs = [world.write(name) for name in NAMES]
    for stub in stubs:
        world.change(stub, count=MAX, resend_time=None)
    hands = OperatorActions(world.database, StubEvent.VOID, actor="ann", why="cancelled")

    first = next(hands.change_ids(stubs))

    assert first == dict.fromkeys(stubs[:2], True)
    assert audits(world) == [("ann", "stub void", name, 1) for name in NAMES[:2]]
    # When it is done again by what still waits, Then the rest is done, and nothing twice
    chosen = hands.chosen(StubFilter(topic="orders"))
    assert chosen.count() == 2
    assert list(hands.change_selected(chosen)) == [dict.fromkeys(stubs[2:], True)]
    assert len(audits(world)) == 4


def test_a_person_neither_confirms_stubs_nor_touches_what_is_confirmed(world: World) -> None:
    with pytest.raises(UsageError, match="a person retries or voids"):
        OperatorActions(world.database, StubEvent.CONFIRM, actor="ann", why="")
    hands = OperatorActions(world.database, StubEvent.RETRY, actor="ann", why="")
    with pytest.raises(UsageError, match="confirmed stubs are not"):
        hands.chosen(StubFilter(status=StubStatus.CONFIRMED))
