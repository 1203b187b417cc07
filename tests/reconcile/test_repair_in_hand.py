"""Repairs beside the resend scheduler, which has stubs in hand, counts sends, and tells people."""

import pytest
from tests.reconcile.test_sql_repair import repair_of, repaired
from tests.resend.worlds import MAX, QUEUE, World

from reliable_mq.database.sql_clock import DatabaseClock
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.reconcile.repairs.repair import RepairAction


def test_a_run_that_repeats_itself_leaves_to_the_scheduler_what_it_will_send(world: World) -> None:
    """Given stubs that no broker has, of which one is due and one waits after a send that failed,
    when they are repaired while following, then nothing changes: they are sent at their time."""
    new, tried = world.write("a"), world.write("b")
    world.change(tried, count=2, missed=True, resend_time=utc_datetime(900.0))
    before = world.rows(world.database.stubs)

    repairs = [repair_of(world, stub, RepairAction.RESEND) for stub in (new, tried)]
    done = repaired(world, *repairs, is_following=True)

    assert done == dict.fromkeys("ab", "it is due already; nothing to change")
    assert world.rows(world.database.stubs) == before


def test_a_single_run_lets_the_scheduler_send_at_once_and_leaves_it_its_count(world: World) -> None:
    """Given stubs that no broker has, one due, one after a send that failed and one that a relay
    has, when they are repaired, then the second is due now, too, and its send is the third."""
    new, tried, relayed = (world.write(name) for name in "abc")
    world.change(tried, count=2, resend_time=utc_datetime(900.0))
    world.change(relayed, owner="one", lease_until=utc_datetime(260.0))
    world.change(relayed, resend_time=utc_datetime(260.0))

    done = repaired(
        world, *(repair_of(world, stub, RepairAction.RESEND) for stub in (new, tried, relayed))
    )

    assert done == {
        "a": "it is due already; nothing to change",
        "b": "done",
        "c": "somebody is at work on it; left alone",
    }
    assert world.scheduler.run_once(200.0).sent == 2
    assert world.row(tried)["count"] == 3


def test_a_repair_while_following_says_what_is_lost_and_leaves_the_scheduler_count_and_time(
    world: World,
) -> None:
    """Given stubs that a broker acknowledged and lost, one of which the scheduler looks at just
    now, when they are repaired, then it will send them, as often and at the times as it would."""
    lost, looked_at = world.sent("a"), world.sent("b")
    for stub in (lost, looked_at):
        world.change(stub, count=2, given_up_by="h", required_groups="g,h")
        world.change(stub, resend_time=utc_datetime(260.0))
    world.change(looked_at, owner="one", lease_until=utc_datetime(260.0))

    repairs = [repair_of(world, stub, RepairAction.RESEND) for stub in (lost, looked_at)]
    done = repaired(world, *repairs, is_following=True)

    assert done == {"a": "done", "b": "somebody is at work on it; left alone"}
    row = world.row(lost)
    assert (row["status"], row["count"], row["given_up_by"]) == (0, 2, "h")
    assert (row["resend_time"], row["missed"]) == (utc_datetime(260.0), True)
    assert (row["broker_name"], row["queue_id"], row["offset"]) == (None, None, None)
    assert world.scheduler.run_once(259.0).sent == 0
    assert world.scheduler.run_once(260.0).sent == 1
    assert world.row(looked_at)["broker_name"] == "broker-a"


def test_a_lost_message_that_is_not_due_yet_is_sent_before_it_is_due(world: World) -> None:
    """Given a delayed message that the broker lost before its time, when it is repaired, then it
    does not wait for that time, but for as long as it would have been waited behind it."""
    early, due = (world.sent(name, deliver_time=at) for name, at in (("a", 5_000.0), ("b", 150.0)))
    world.change(early, resend_time=utc_datetime(5_010.0))
    world.change(due, resend_time=utc_datetime(220.0))

    repairs = [repair_of(world, stub, RepairAction.RESEND) for stub in (early, due)]
    repaired(world, *repairs, is_following=True)

    times = [world.row(stub)["resend_time"] for stub in (early, due)]
    assert times == [utc_datetime(210.0), utc_datetime(220.0)]


@pytest.mark.parametrize("name", ["lost", "refused"])
def test_a_stub_in_the_schedulers_hand_is_told_of_in_time_with_repairs_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Given two messages alike that are sent in vain, one of which a run repairs again and again,
    as `--follow` does; then a person is told of both at the same time, and once; what was told is
    open as long as no person did something about it."""
    pair = ["e" + name[0], "d" + name[0]]
    repaired_one, left_one = (world.sent(each) for each in pair)
    world.broker.progress["g"] = {QUEUE: (100, 100)}
    world.broker.refused = {pair[0], pair[1]} if name == "refused" else set()
    told: dict[str, int] = {}

    for at in range(105, 400, 5):
        monkeypatch.setattr(DatabaseClock, "now_on", lambda *_, at=at: float(at))
        world.scheduler.run_once(float(at))
        for _, each in world.open_escalations():
            told.setdefault(each, at)
        repaired(world, repair_of(world, repaired_one, RepairAction.RESEND), is_following=True)

    assert told.keys() == set(pair)
    assert told[pair[0]] == told[pair[1]]
    assert sorted(world.open_escalations()) == [("sends used up", each) for each in sorted(pair)]
    assert world.row(repaired_one)["count"] == world.row(left_one)["count"] == MAX
    done = repaired(world, repair_of(world, repaired_one, RepairAction.RESEND), is_following=True)
    assert set(done.values()) == {"a person was told of it; left alone"}
