"""What does not settle is told of, whatever else does not settle; looking for it costs little."""

import logging
from typing import Any

import pytest
from sqlalchemy import event, text
from tests.resend.worlds import MAX, QUEUE, World

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.escalate import sql_stuck
from reliable_mq.escalate.alerts import CLOSED_LOOK_SECONDS, AlertCounts, LogNotifier
from reliable_mq.escalate.escalation import EscalationKind
from reliable_mq.escalate.sql_settlement import settlement_of
from reliable_mq.escalate.sql_stuck import stuck_of

DAY = 86_400.0
LOOK = CLOSED_LOOK_SECONDS


def test_a_stub_that_is_stuck_is_told_once_and_forgotten_when_it_settles(world: World) -> None:
    # Given a message for a group that nobody runs, one that waits behind a stub of its key that
    # waits for a person, delayed ones, sent and unsent, and one that is young
    waiting = world.sent("a", groups=("typo",))
    first, blocked = world.write("b", key="k"), world.write("c", key="k")
    world.change(first, resend_time=None, count=MAX)
    world.change(blocked, note="an earlier one")
    world.sent("d", deliver_time=100.0 + DAY)
    far = world.write("e", deliver_time=100.0 + 9 * DAY)
    world.change(far, resend_time=utc_datetime(100.0 + 6 * DAY), owner=None)
    world.broker.progress["typo"] = world.broker.progress["g"] = {QUEUE: (-1, 9)}
    alerts = world.alerts()
    assert alerts.run_once(100.0) == AlertCounts()

    # When a day has passed
    assert alerts.run_once(100.0 + DAY).stuck == 2
    assert alerts.run_once(200.0 + DAY).stuck == 0

    # Then a person is told of both, once, and why
    assert world.notifier.told == [["c", "a"]]
    assert [item.reason for item in world.notifier.digests[0].items] == [
        "not sent in 24.0 h, after 0 tries",
        "not consumed in 24.0 h by typo; sent once",
    ]
    # When one of them is consumed after all, Then it is no longer open
    world.change(waiting, status=1, resend_time=None)
    alerts.run_once(300.0 + DAY)
    assert world.open_escalations() == [("stuck", "c")]


def test_of_many_that_wait_for_the_same_some_are_told_and_the_rest_is_counted(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sql_stuck, "TOLD_ONE_BY_ONE", 2)
    stubs = [world.sent(f"m{number}") for number in range(5)]
    alerts = world.alerts(world.notifier, LogNotifier())  # type: ignore[arg-type]

    # When a group is behind by five, Then two are told by themselves and three by a row
    with caplog.at_level(logging.ERROR):
        assert alerts.run_once(100.0 + DAY).stuck == 5
    (digest,) = world.notifier.digests
    assert digest.headline == (
        "[shop] 2 messages and 1 backlog wait for a person: 2 stuck, 1 backlog"
    )
    rest = digest.items[0]
    assert (rest.kind, rest.topic, rest.consumer_group) == (EscalationKind.BACKLOG, "orders", "g")
    assert rest.reason == "3 more messages are not consumed by g for 24.0 h"
    assert caplog.messages[0].endswith(
        "`reliable-mq stub list --status unconfirmed --topic orders --app MODULE:OBJECT`"
    )

    # When the group catches up, or more wait, Then nothing new is told
    world.change(stubs[0], status=1, resend_time=None)
    world.sent("m5")
    assert alerts.run_once(100.0 + DAY + LOOK).stuck == 0
    for stub in stubs[1:]:
        world.change(stub, status=1, resend_time=None)
    assert alerts.run_once(100.0 + DAY + 2 * LOOK).stuck == 0
    assert world.open_escalations() == [("backlog", "")]

    # When nothing waits but what is told by itself, Then it is over, and may begin anew
    world.change("m5".ljust(32, "0"), status=1, resend_time=None)
    alerts.run_once(100.0 + DAY + 3 * LOOK)
    assert world.open_escalations() == []
    world.sent("m6")
    assert alerts.run_once(100.0 + DAY + 4 * LOOK).stuck == 1


def test_no_matter_however_large_hides_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group of one topic is gone for good; then another's is, and a topic cannot be sent to."""
    monkeypatch.setattr(sql_stuck, "TOLD_ONE_BY_ONE", 3)
    for number in range(7):
        world.sent(f"gone{number}.", groups=("gone", "payments"), topic="clicks")
        world.log(f"gone{number}.".ljust(32, "0"), group="payments")
    assert world.stuck.escalate_stuck(100.0 + DAY, DAY) == 7

    world.sent("payment", groups=("gone", "payments"), topic="clicks")
    world.log("payment".ljust(32, "0"), group="gone")
    world.write("blocked", topic="clicks")
    world.write("unsent", topic="orders")
    behind = world.sent("behind", topic="orders")
    world.log(behind)

    assert world.stuck.escalate_stuck(100.0 + DAY + LOOK, DAY) == 4
    found = {name for kind, name in world.open_escalations() if kind == "stuck"}
    assert found - {"gone0.", "gone1.", "gone2."} == {"payment", "blocked", "unsent", "behind"}


def test_what_a_group_gave_up_is_not_stuck_for_that_group(world: World) -> None:
    """A person was told of its dead letter; the others are still waited for."""
    stub = world.sent("a", groups=("payments", "points", "stock"))
    world.log(stub, group="stock")
    with world.database.engine.begin() as connection:
        settlement_of(world.database).exhaust(
            connection, stub, group="payments", reason="no", now=105.0, topic="orders"
        )

    assert world.stuck.escalate_stuck(100.0 + DAY, DAY) == 1

    found = [
        row for row in world.rows(world.database.escalations) if row["kind"] == EscalationKind.STUCK
    ]
    assert [(row["consumer_group"], row["reason"]) for row in found] == [
        ("points", "not consumed in 24.0 h by points; sent once")
    ]


def test_what_is_stuck_is_over_when_its_group_has_consumed_it_or_given_it_up(world: World) -> None:
    """However long the stub waits for another group, or for a person."""
    stub = world.sent("a", groups=("payments", "points", "stock"))
    world.log(stub, group="stock")
    assert world.stuck.escalate_stuck(100.0 + DAY, DAY) == 1
    assert stuck_groups(world) == ["payments"]

    # When that group gives it up, Then its dead letter tells of it, and the other one is told of
    with world.database.engine.begin() as connection:
        settlement_of(world.database).exhaust(
            connection, stub, group="payments", reason="no", now=105.0, topic="orders"
        )
    world.stuck.close_settled(200.0 + DAY)
    assert world.stuck.escalate_stuck(200.0 + DAY, DAY) == 1
    assert stuck_groups(world) == ["points"]

    # When that one consumes it after all, Then a person reads of the dead letter alone
    world.log(stub, group="points")
    world.stuck.close_settled(300.0 + DAY)
    assert world.open_escalations() == [("dead letter", "a")]


def stuck_groups(world: World) -> list[str]:
    rows = world.rows(world.database.escalations)
    return [
        row["consumer_group"]
        for row in rows
        if row["open_key"] and row["kind"] == EscalationKind.STUCK
    ]


def test_what_a_person_has_had_sent_again_has_its_time_from_then_on(world: World) -> None:
    stub = world.sent("a", groups=("payments",))
    assert world.stuck.escalate_stuck(100.0 + DAY, DAY) == 1
    with world.database.engine.begin() as connection:
        world.hands.retry(connection, [stub], "ann", "", 200.0 + DAY)
    world.change(stub, broker_name="broker-a", queue_id=1, offset=9)

    assert world.stuck.escalate_stuck(300.0 + DAY, DAY) == 0
    assert world.stuck.escalate_stuck(201.0 + 2 * DAY, DAY) == 1


def test_one_instance_looks_and_the_next_turn_is_anybodys(world: World) -> None:
    first, second = world.alerts(owner="one"), world.alerts(owner="two")
    first.run_once(90.0 + DAY)
    world.write("a")

    assert second.run_once(101.0 + DAY).stuck == 0
    # When the first one is gone, Then the second one looks when its turn comes
    assert second.run_once(101.0 + DAY + LOOK).stuck == 1


def test_looks_that_take_long_come_less_often(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 30.0])
    monkeypatch.setattr(world.stuck, "_stopwatch", lambda: next(times))
    assert world.stuck.take_turn(1000.0, 1000.0 + LOOK)

    world.stuck.escalate_stuck(1000.0, DAY)

    another = stuck_of(world.database)
    assert not another.take_turn(1599.0, 1599.0 + LOOK)
    assert another.take_turn(1600.0, 1600.0 + LOOK)


def test_who_dies_between_two_matters_has_told_of_one_and_the_next_tells_of_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a", topic="a")
    world.write("b", topic="b")
    escalate, calls = world.escalations.escalate, []

    def once(*given: Any) -> None:
        calls.append(given)
        if len(calls) > 1:
            raise KeyboardInterrupt
        escalate(*given)

    monkeypatch.setattr(world.stuck._escalations, "escalate", once)
    with pytest.raises(KeyboardInterrupt):
        world.stuck.escalate_stuck(100.0 + DAY, DAY)

    assert world.open_escalations() == [("stuck", "a")]
    assert stuck_of(world.database).escalate_stuck(100.0 + DAY, DAY) == 1
    assert world.open_escalations() == [("stuck", "a"), ("stuck", "b")]


@pytest.mark.parametrize("column", ["create_date", "deliver_time", "resend_time"])
def test_a_time_that_does_not_read_hides_nothing_of_what_is_stuck(
    world: World, column: str
) -> None:
    odd, _, _ = world.write("odd", topic="a"), world.write("b", topic="a"), world.write("c")
    texts = {"sqlite": ["soon", "0"], "postgresql": ["-infinity", "infinity"]}
    for value in texts.get(world.database.dialect, ["0001-01-01"]):
        with world.database.engine.begin() as connection:
            change = text(f"UPDATE rmq_message_stub SET {column} = :v WHERE message_id = :id")
            connection.execute(change, {"v": value, "id": odd})
        world.stuck.escalate_stuck(100.0 + DAY, DAY)

    assert {"b", "c"} <= {name for _, name in world.open_escalations()}


def test_looking_for_the_stuck_reads_what_is_old_and_nothing_that_waits(postgres_url: str) -> None:
    world = World(postgres_url)
    columns = "(message_id, topic, content, status, resend_time, create_date, update_date)"
    with world.database.engine.begin() as connection:
        for status, due, begin in ((1, "NULL", 100), (0, "now()", 100 + int(DAY))):
            connection.execute(
                text(
                    f"INSERT INTO rmq_message_stub {columns} SELECT md5(i::text || '{begin}'),"
                    f" 't' || i % 3, '', {status}, {due}, to_timestamp({begin}),"
                    f" to_timestamp({begin}) FROM generate_series(1, 30000) i"
                )
            )
    world.sent("due", topic="t1")
    with world.database.engine.begin() as connection:
        connection.execute(text("ANALYZE rmq_message_stub"))
    rows: list[int] = []

    def count(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "rmq_message_stub" in statement and statement.startswith(("SELECT", "WITH")):
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            rows.append(_rows_read(cursor.fetchone()[0][0]["Plan"]))

    event.listen(world.database.engine, "before_cursor_execute", count)
    assert world.stuck.escalate_stuck(100.0 + DAY, DAY) == 1

    assert len(rows) >= 4
    assert max(rows) <= 10, rows
    world.database.close()


def _rows_read(plan: dict[str, Any]) -> int:
    """Return how many stubs a statement read, those included that it did not want."""
    own = 0
    if plan.get("Relation Name") == "rmq_message_stub":
        seen = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        own = int(seen * plan["Actual Loops"])
    return own + sum(map(_rows_read, plan.get("Plans", ())))
