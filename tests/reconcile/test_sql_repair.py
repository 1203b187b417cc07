"""Repairs on real databases, by hand-made plans: what becomes of stubs, attempts and people."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from tests.resend.worlds import World

from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.message import RESENT
from reliable_mq.reconcile.repairs.repair import Repair, RepairAction, RepairRate
from reliable_mq.reconcile.repairs.sql_repair import RepairOrder, RepairOutcome, repair_all

AS_OF = utc_datetime(200.0)
CHANGED_BY_TIME = ("message_id", "seq", "create_date", "update_date", "resend_time", "note")


def url_of(world: World) -> str:
    return world.database.url.render_as_string(hide_password=False)


def repair_of(world: World, stub: str, action: RepairAction, *groups: str, **seen: Any) -> Repair:
    row = world.row(stub)
    names = ("status", "count", "update_date", "offset")
    told = {f"stub_{name}": row[name] for name in names}
    return Repair(stub, action, groups or ("g",), ("not consumed",), told | seen)


def repaired(world: World, *repairs: Repair, **order: Any) -> dict[str, str]:
    """Do repairs; return what came of each, by the first letter of the message's id."""
    first = RepairOrder((url_of(world),), "rmq_", "run-1", AS_OF, "broker-a")
    done = repair_all(replace(first, **order), repairs)
    return {each.repair.message_id.rstrip("0"): each.outcome for each in done}


def log_of(world: World, stub: str, **columns: Any) -> None:
    world.log(stub, state=0)
    table = world.database.logs
    with world.database.engine.begin() as connection:
        these = update(table).where(table.c.message_id == stub)
        connection.execute(these.values(**columns))


def test_a_repair_leaves_a_stub_and_its_attempts_as_a_retry_by_hand_does(world: World) -> None:
    """Given two messages alike, given up with all attempts used up; when one is retried by hand and
    the other one repaired, then both are alike again, and consumers are told of the resend."""
    by_hand, by_repair = world.sent("a"), world.sent("b")
    for stub in (by_hand, by_repair):
        world.change(stub, count=16, given_up=True, given_up_by="g", resend_time=None)
        log_of(world, stub, attempt=16, lease_until=utc_datetime(150.0))

    with world.database.engine.begin() as connection:
        world.hands.retry(connection, [by_hand], "ann", "", 200.0)
    assert repaired(world, repair_of(world, by_repair, RepairAction.RESEND)) == {"b": "done"}

    ours, theirs = (dict(world.row(stub)) for stub in (by_repair, by_hand))
    for name in set(ours) - set(CHANGED_BY_TIME):
        assert ours[name] == theirs[name], name
    assert ours["resend_time"] == theirs["resend_time"]
    logs = world.rows(world.database.logs)
    assert [(log["attempt"], log["lease_until"]) for log in logs] == [(0, None)] * 2
    assert world.scheduler.run_once(200.0).sent == 2
    assert [message.properties[RESENT] for message in world.broker.messages] == ["true"] * 2


def test_what_a_person_was_told_of_is_closed_and_can_be_told_again(world: World) -> None:
    stub = world.write("a")
    world.change(stub, count=16)
    world.scheduler.run_once(105.0)
    assert world.open_escalations() == [("sends used up", "a")]

    repaired(world, repair_of(world, stub, RepairAction.RESEND))
    assert world.open_escalations() == []
    world.change(stub, count=16, resend_time=utc_datetime(201.0))
    world.scheduler.run_once(202.0)

    assert world.open_escalations() == [("sends used up", "a")]


def test_a_dead_attempt_is_released_and_one_that_runs_is_not(world: World) -> None:
    dead, live = world.sent("a"), world.sent("b")
    log_of(world, dead, owner="worker-1", attempt=9, lease_until=utc_datetime(150.0))
    log_of(world, live, owner="worker-2", attempt=9, lease_until=utc_datetime(260.0))

    done = repaired(world, *(repair_of(world, stub, RepairAction.RELEASE) for stub in (dead, live)))

    assert done == {"a": "done", "b": "done"}
    logs = {row["message_id"]: row for row in world.rows(world.database.logs)}
    released, kept = logs[dead], logs[live]
    columns = ("owner", "lease_until", "attempt", "in_doubt")
    assert [released[name] for name in columns] == [None, None, 0, True]
    assert (kept["owner"], kept["attempt"]) == ("worker-2", 9)


def test_a_record_is_marked_with_the_broker_in_whose_log_it_lies(world: World) -> None:
    """Given stubs that name another broker than the one of the record, when a position is marked,
    then with the record's broker; without any name it is left alone."""
    world.sent("z")
    world.change("z".ljust(32, "0"), broker_name="broker-of-last-year")
    place = {"record_queue_id": 3, "record_queue_offset": 7}
    named, by_store, unknown = (world.write(name) for name in "abc")

    first = repair_of(world, named, RepairAction.MARK, **place, record_broker_name="broker-b")
    assert repaired(world, first) == {"a": "done"}
    assert repaired(world, repair_of(world, by_store, RepairAction.MARK, **place)) == {"b": "done"}
    third = repair_of(world, unknown, RepairAction.MARK, **place)
    assert repaired(world, third, broker_name=None) == {
        "c": "no ledger names the broker; give --broker-name"
    }

    rows = [world.row(stub) for stub in (named, by_store, unknown)]
    assert [(row["broker_name"], row["queue_id"], row["offset"]) for row in rows] == [
        ("broker-b", 3, 7),
        ("broker-a", 3, 7),
        (None, None, None),
    ]
    assert [row["status"] for row in rows] == [0, 0, 0]
    alone = world.write("d", groups=())
    repaired(world, repair_of(world, alone, RepairAction.MARK, "", **place))
    assert world.row(alone)["status"] == 1, "the acknowledgement was all that it waited for"


def test_the_same_plan_twice_changes_nothing_the_second_time(world: World) -> None:
    plan = [
        repair_of(world, world.sent("a"), RepairAction.RESEND),
        repair_of(world, world.sent("b"), RepairAction.CONFIRM),
        repair_of(world, world.sent("c"), RepairAction.VOID),
    ]

    assert set(repaired(world, *plan).values()) == {"done"}
    before = world.rows(world.database.stubs)
    again = repaired(world, *plan)

    assert set(again.values()) == {"the stub moved since; left alone"}
    assert world.rows(world.database.stubs) == before
    statuses = {row["message_id"][0]: row["status"] for row in before}
    assert statuses == {"a": 0, "b": 1, "c": 2}
    told = [(row["action"], row["changed"], row["run_id"]) for row in world.rows(world.audit.table)]
    assert told == [(action, done, "run-1") for done in (1, 0) for action in _ACTIONS]
    detail = json.loads(world.rows(world.audit.table)[0]["detail"])
    assert (detail["verdicts"], detail["before"]["count"]) == (["not consumed"], 1)


_ACTIONS = ("resend", "confirm", "void")


def test_nothing_is_voided_that_had_an_effect_or_may_still_have_one(world: World) -> None:
    """Given messages that a group has consumed, here or as it was told, that another group may
    still consume, that moved, or that are settled; when they are to be voided, then none is."""
    consumed, told, half, settled, gone = (world.sent(name) for name in "abcde")
    world.log(consumed, group="extra")
    notices = world.database.confirmations
    row = {"message_id": told, "consumer_group": "far", "state": 1, "notices": 1}
    times = dict.fromkeys(("create_date", "update_date"), AS_OF)
    with world.database.engine.begin() as connection:
        connection.execute(insert(notices).values(**row, **times))
    world.change(half, required_groups="g,h")
    world.change(settled, status=1)
    plan = [
        repair_of(world, stub, RepairAction.VOID) for stub in (consumed, told, half, settled, gone)
    ]
    with world.database.engine.begin() as connection:
        stubs = world.database.stubs
        connection.execute(stubs.delete().where(stubs.c.message_id == gone))

    assert repaired(world, *plan) == {
        "a": "a consumer group has consumed it; left alone",
        "b": "a consumer group has consumed it; left alone",
        "c": "another required group may still consume it; left alone",
        "d": "the stub is settled; left alone",
        "e": "the stub is gone",
    }
    assert {row["status"] for row in world.rows(world.database.stubs)} == {0, 1}


def test_nothing_is_voided_that_somebody_is_at_work_on(world: World, other_url: str) -> None:
    """Given attempts that run, here and in another database, and lock nothing; when their messages
    are to be voided, then they are not, and one whose attempt died is."""
    other = World(other_url)
    here, there, dead = (world.sent(name) for name in "abc")
    lease = {"owner": "worker-1", "attempt": 1}
    log_of(world, here, lease_until=utc_datetime(260.0), **lease)
    log_of(other, there, lease_until=utc_datetime(260.0), **lease)
    log_of(world, dead, lease_until=utc_datetime(150.0), **lease)
    plan = [repair_of(world, stub, RepairAction.VOID) for stub in (here, there, dead)]

    done = repaired(world, *plan, urls=(url_of(world), url_of(other)))

    left = "somebody is at work on it; left alone"
    assert done == {"a": left, "b": left, "c": "done"}
    other.database.close()


def test_a_repair_goes_where_the_stub_lies_and_frees_attempts_everywhere(
    world: World, other_url: str
) -> None:
    """Given two databases, stubs in both and the attempts in the other one, when they are repaired,
    then each stub is changed where it lies, and the attempts that were used up start again."""
    other = World(other_url)
    here, there = world.sent("a"), other.sent("b")
    log_of(other, here, attempt=16)
    log_of(world, there, attempt=16)
    consumed = world.sent("c")
    other.log(consumed, group="extra")
    plan = [
        repair_of(world, here, RepairAction.RESEND),
        repair_of(other, there, RepairAction.RESEND),
        repair_of(world, consumed, RepairAction.VOID),
    ]

    done = repaired(world, *plan, urls=(url_of(world), url_of(other)))

    void = "a consumer group has consumed it; left alone"
    assert done == {"a": "done", "b": "done", "c": void}
    assert (world.row(here)["broker_name"], other.row(there)["broker_name"]) == (None, None)
    attempts = [each.rows(each.database.logs)[0]["attempt"] for each in (world, other)]
    assert attempts[0] == 0
    assert {row["attempt"] for row in other.rows(other.database.logs) if not row["state"]} == {0}
    assert [row["message_id"][0] for row in other.rows(other.audit.table)] == ["b"]
    other.database.close()


def test_what_somebody_is_at_work_on_is_left_alone_and_not_waited_for(world: World) -> None:
    """Given a consumer that has locked its consume log and another one that confirms a stub, when
    both messages are repaired, then they are left alone at once, and the third one is repaired."""
    if world.database.dialect == "sqlite":
        pytest.skip("SQLite locks the file and no rows")
    handled, confirmed, free = (world.sent(name) for name in "abc")
    log_of(world, handled, attempt=1)
    plan = [repair_of(world, stub, RepairAction.RESEND) for stub in (handled, confirmed, free)]
    stubs, logs = world.database.stubs, world.database.logs

    with world.database.engine.begin() as busy:
        busy.execute(select(logs).where(logs.c.message_id == handled).with_for_update())
        busy.execute(select(stubs).where(stubs.c.message_id == confirmed).with_for_update())
        done = repaired(world, *plan)

    left = "somebody is at work on it; left alone"
    assert done == {"a": left, "b": left, "c": "done"}


def test_repairs_are_paced_and_streamed(world: World) -> None:
    """Given a rate of two a second, when five stubs are repaired, then the pauses fit, and no more
    of the plan was asked for than is done next."""
    stubs = [world.sent(name) for name in "abcde"]
    asked: list[str] = []
    pauses: list[float] = []

    def plan() -> Iterator[Repair]:
        for stub in stubs:
            asked.append(stub)
            yield repair_of(world, stub, RepairAction.RESEND)

    times = iter((100.0, 100.0, 100.25, 101.5))  # at the beginning, and before each batch
    pace: dict[str, Any] = {
        "rate": RepairRate(2.0),
        "ticks": times.__next__,
        "sleep": pauses.append,
    }
    done = repair_all(RepairOrder((url_of(world),), "rmq_", "run-1", AS_OF, **pace), plan())
    next(done)

    assert len(asked) == 2
    assert [each.changed for each in done] == [True] * 4
    assert pauses == [0.75, 0.5]


def test_while_traffic_runs_no_settled_stub_is_opened_again(world: World) -> None:
    """Given consumers that confirm stubs while a repair sends the same ones again, from a plan that
    was right a moment before; then what was confirmed stays so, and nobody fails."""
    stubs = [world.sent(f"{number:03d}f") for number in range(30)]
    plan = [repair_of(world, stub, RepairAction.RESEND) for stub in stubs]
    failures: list[Exception] = []
    confirmed: list[str] = []
    begin = threading.Barrier(3)

    def consume(mine: list[str]) -> None:
        begin.wait(30)
        for stub in mine:
            try:
                with world.database.engine.begin() as connection:
                    log = {"message_id": stub, "consumer_group": "g", "topic": "orders"}
                    place = {"broker_name": "broker-a", "queue_id": 1, "offset": 5}
                    state = {"state": 1, "attempt": 1, "create_date": AS_OF}
                    row = insert(world.database.logs).values(**log, **place, **state)
                    connection.execute(row)
                    confirmation_of(world.database).confirm(connection, "g", [stub], 201.0)
                confirmed.append(stub)
            except Exception as error:  # noqa: BLE001 - the test's result
                failures.append(error)

    results: list[RepairOutcome] = []

    def repair() -> None:
        order = RepairOrder(
            (url_of(world),), "rmq_", "run-1", AS_OF, rate=RepairRate(3.0), sleep=lambda _: None
        )
        begin.wait(30)
        results.extend(repair_all(order, plan))

    halves = (stubs[::2], stubs[1::2][::-1])
    threads = [threading.Thread(target=consume, args=(half,)) for half in halves]
    threads.append(threading.Thread(target=repair))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(results) == len(confirmed) == len(stubs)
    rows = {row["message_id"]: row for row in world.rows(world.database.stubs)}
    assert {rows[stub]["status"] for stub in confirmed} == {1}
    changed = {each.repair.message_id for each in results if each.changed}
    assert {row["message_id"] for row in rows.values() if row["missed"]} == changed


def test_the_time_of_a_change_is_the_databases_own(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(database_url)
    stub = world.sent("a")
    world.change(stub, given_up=True, resend_time=None)
    before = datetime.now(UTC)

    repaired(world, repair_of(world, stub, RepairAction.RESEND))

    assert world.row(stub)["update_date"] >= before
    assert world.row(stub)["resend_time"] == world.row(stub)["update_date"]
    world.database.close()
