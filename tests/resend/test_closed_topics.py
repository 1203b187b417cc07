"""A topic that is closed because nothing arrives: it is probed, opens soon, and all of it goes."""

from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import select
from tests.resend.after_faults import Chaos
from tests.resend.worlds import MAX, World

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.outbox.relay import Relay, SendOutcome
from reliable_mq.outbox.resend_policy import ResendPolicy, ladder
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend import sql_opening
from reliable_mq.resend.scheduler import ResendCounts, Scheduler
from reliable_mq.resend.sql_resending import book_of
from reliable_mq.resend.topic_gate import PROBE_SECONDS_MAX, PROBE_STUBS, TopicRow, after_failure

KEYS = 12


def run(scheduler: Scheduler, now: float, seconds: float) -> float:
    """Run a scheduler as its thread does, from `now` on; return the time after the last turn."""
    end = now + seconds
    while now < end:
        scheduler.run_once(now)
        now = min(max(scheduler.next_time or 0.0, now + 0.05), now + 1.0)
    return now


@pytest.mark.parametrize("each", [1, 20])
def test_the_heads_of_keys_are_probed_and_open_the_topic_for_all(world: World, each: int) -> None:
    # Given keys of which the first stub has failed, and what follows it is due before it
    for number in range(each):
        for key in range(KEYS):
            world.write(f"k{key}n{number}x", key=f"k{key}")
    world.broker.away = True
    scheduler = world.new_scheduler("one", batch=500, count_max=16)
    now = run(scheduler, 105.0, 90.0)
    assert world.topics.rows()["orders"].is_closed

    # When the broker is back, Then all of them are sent soon, in the order of their keys
    world.broker.away = False
    run(scheduler, now, 15.0)
    assert len(world.broker.sent) == KEYS * each
    for key in range(KEYS):
        own = [name for name in world.broker.sent if name.startswith(f"k{key}n")]
        assert own == [f"k{key}n{number}x" for number in range(each)]


def closed(world: World, *, at: float = 100.0) -> None:
    """Let the topic be closed, to be probed a second later."""
    world.topics.add_failures("orders", PROBE_STUBS, at, "ConnectionLost: gone")


def waits(world: World, name: str, until: float, **more: Any) -> str:
    """Write a stub that nobody has in hand and that is due at a time."""
    stub = world.write(name, **more)
    world.change(stub, resend_time=utc_datetime(until), owner=None, lease_until=None)
    return stub


def test_what_waits_for_a_closed_topic_is_due_at_once_when_it_opens(world: World) -> None:
    # Given stubs that have backed off, and one that is due
    for number in range(30):
        waits(world, f"o{number:02}x", 3_000.0 + number)
    waits(world, "due", 101.0)
    closed(world)

    # When the probe arrives, Then the next turn sends all of them
    assert world.scheduler.run_once(101.0).sent == 1
    assert world.scheduler.run_once(101.1).sent == 30
    assert world.topics.rows() == {}


def test_a_topic_opens_also_where_very_many_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_opening, "ROWS_MAX", 5)
    for number in range(12):
        waits(world, f"o{number:02}x", 3_000.0 + number)
    waits(world, "due", 101.0)
    closed(world)

    sent = [world.scheduler.run_once(101.0 + turn).sent for turn in range(5)]

    assert sent == [1, 5, 5, 2, 0]
    assert world.topics.rows() == {}


def test_a_topic_opens_until_also_what_somebody_had_locked_is_due(postgres_url: str) -> None:
    world = World(postgres_url)
    stub, other = waits(world, "locked", 3_000.0), waits(world, "other", 3_000.0)
    table = world.database.stubs
    opening = book_of(world.database).opening

    # When somebody has locked a stub, Then it is not made due, and the topic goes on opening
    with world.database.engine.begin() as connection:
        connection.execute(select(table).where(table.c.message_id == stub).with_for_update())
        assert opening.make_due("orders", 200.0)
    assert world.row(other)["resend_time"] == utc_datetime(200.0)
    assert world.row(stub)["resend_time"] == utc_datetime(3_000.0)

    # When it is free, Then the next turn makes it due, and that is the end
    assert not opening.make_due("orders", 201.0)
    assert world.row(stub)["resend_time"] == utc_datetime(200.0)
    world.database.close()


def test_a_probe_takes_what_is_not_due_where_nothing_else_may_go(world: World) -> None:
    waits(world, "later", 3_000.0)
    closed(world)

    assert world.scheduler.run_once(101.0).sent == 1


def test_a_delayed_message_is_not_sent_before_its_time_because_a_topic_opens(world: World) -> None:
    stub = waits(world, "delayed", 3_000.0, deliver_time=3_600.0)
    closed(world)

    assert world.scheduler.run_once(101.0) == ResendCounts()
    waits(world, "due", 102.0)
    assert [world.scheduler.run_once(103.0 + turn).sent for turn in range(3)] == [1, 0, 0]
    assert world.row(stub)["resend_time"] == utc_datetime(3_000.0)


def test_what_somebody_has_in_hand_is_neither_probed_nor_made_due(world: World) -> None:
    stub = world.write("relayed")  # until 105
    closed(world)
    assert world.scheduler.run_once(101.0) == ResendCounts()

    waits(world, "due", 102.0)
    assert [world.scheduler.run_once(102.0 + turn).sent for turn in range(2)] == [1, 0]
    assert world.row(stub)["resend_time"] == utc_datetime(105.0)


def test_a_probe_that_sends_nothing_leaves_the_topic_to_be_probed(world: World) -> None:
    # Given a key whose first stub waits for a person
    world.change(world.write("k0x", key="k"), count=MAX, resend_time=None, owner=None)
    waits(world, "k1x", 101.0, key="k")
    closed(world)
    assert world.scheduler.run_once(101.0) == ResendCounts(claimed=1, rested=1)

    # When another one becomes due, Then the next turn probes with it
    waits(world, "other", 102.0)
    assert world.scheduler.run_once(102.0).sent == 1


def test_a_probe_of_refused_messages_only_leaves_the_topic_to_be_probed(world: World) -> None:
    waits(world, "odd", 101.0)
    world.broker.refused = {"odd"}
    closed(world)
    assert world.scheduler.run_once(101.0).failed == 1

    waits(world, "good", 102.0)
    assert world.scheduler.run_once(102.0).sent == 1


def test_many_stubs_behind_one_that_waits_for_a_person_hide_no_other_key(world: World) -> None:
    world.change(world.write("k0x", key="k"), count=MAX, resend_time=None, owner=None)
    for number in range(1, 40):
        waits(world, f"k{number}x", 101.0, key="k")
    waits(world, "other", 102.0, key="o")
    closed(world)

    sent = [world.scheduler.run_once(103.0 + turn).sent for turn in range(3)]

    assert sent[0] == 1


def test_a_probe_sends_a_few_also_where_it_had_to_look_at_many(world: World) -> None:
    # Given a closed topic: what is due first waits for a person's, and much more may go
    world.change(world.write("k0x", key="k"), count=MAX, resend_time=None, owner=None)
    for number in range(1, PROBE_STUBS + 1):
        waits(world, f"k{number}x", 101.0, key="k")
    for number in range(40):
        waits(world, f"o{number}x", 102.0, key=f"o{number % 20}")
    closed(world)
    # And another topic that has much to send
    for number in range(60):
        waits(world, f"i{number}x", 102.5, topic="invoices")

    # When a scheduler takes its turn, Then the probe is small, and the rest is the other topic's
    world.new_scheduler("two", batch=60).run_once(103.0)
    sent = world.broker.sent
    assert [name for name in sent if name.startswith("o")] == [
        f"o{number}x" for number in range(PROBE_STUBS)
    ]
    assert sum(name.startswith("i") for name in sent) == 60 - 2 * PROBE_STUBS


def test_a_first_stub_whose_sender_died_is_probed_alone(world: World) -> None:
    world.change(world.write("k0x", key="k"), count=1, owner="dead")
    waits(world, "k1x", 101.0, key="k")
    closed(world)

    assert world.scheduler.run_once(106.0).sent == 1
    assert world.broker.sent == ["k0x"]
    assert world.scheduler.run_once(111.0).sent == 1


def test_a_failed_send_waits_for_its_topic_and_no_longer(world: World) -> None:
    # Given a stub that was sent often, so that its next wait is long, and a broker that is away
    stub = waits(world, "often", 101.0)
    world.change(stub, count=2)
    world.broker.away = True
    policy = ResendPolicy(wait=ladder(10.0, 20.0, 3_000.0), count_max=16)
    book = structs.replace(book_of(world.database), clock=float)
    scheduler = Scheduler(book, world.broker, policy, owner="one", lease=60.0, batch=100)

    # When it fails in an open topic, Then it is tried again as soon as a closed one is probed
    scheduler.run_once(101.0)
    assert world.row(stub)["resend_time"] == utc_datetime(101.0 + PROBE_SECONDS_MAX)
    assert world.row(stub)["count"] == 2  # it would have waited longer by itself

    # When the topic closes, Then it is due at the probe
    world.topics.add_failures("orders", PROBE_STUBS, 111.0, "gone")
    scheduler.run_once(112.0)
    probe_time = world.topics.rows()["orders"].probe_time
    assert probe_time is not None
    assert world.row(stub)["resend_time"] == utc_datetime(probe_time)


def test_an_outage_of_some_seconds_uses_up_no_stub_whose_waits_were_long(world: World) -> None:
    # Given a user's waits that outlast every outage, and few of them
    stub = waits(world, "a", 101.0)
    policy = ResendPolicy(wait=ladder(5.0, 3_000.0), count_max=2)
    book = structs.replace(book_of(world.database), clock=float)
    scheduler = Scheduler(book, world.broker, policy, owner="one", lease=60.0, batch=100)
    world.broker.away = True

    # When other messages arrive now and then, so that the topic stays open
    now = 101.0
    for _ in range(8):
        now = run(scheduler, now, 15.0)
        world.topics.sent("orders", now)

    # Then nobody is told, and it is sent when the broker is back
    assert world.open_escalations() == []
    assert world.row(stub)["count"] == 1
    world.broker.away = False
    run(scheduler, now, 0.1 * (now - 100.0) + 2.0)
    assert world.broker.sent == ["a"]


def test_a_message_that_fails_for_ever_beside_others_that_arrive_is_tried_ever_more_seldom() -> (
    None
):
    policy = ResendPolicy(wait=ladder(10.0, 600.0), count_max=6)
    row = TopicRow(topic="orders", failures=1)
    tries, count, now = 0, 0, 0.0

    while count < policy.count_max:
        tries += 1
        due = policy.next_time(count + 1, now)
        failed = SendOutcome("a", count + 1, due, error="ConnectionLost: gone")
        judged = after_failure(failed, row, now, 0.0, free=False)
        assert now + 10.0 <= judged.next_time <= due
        count, now = judged.count, judged.next_time

    assert tries < 80
    assert now > policy.horizon()


def test_a_person_opens_a_closed_topic_and_all_of_it_is_due(world: World) -> None:
    for number in range(3):
        waits(world, f"o{number}x", 3_000.0)
    closed(world)

    assert world.topics.resume("orders", "jane", "the broker is mended", 100.5)
    assert not world.topics.resume("orders", "jane", "again", 100.5)
    assert world.scheduler.run_once(100.6).sent == 3


def test_a_relay_that_sends_to_a_topic_again_opens_it(world: World) -> None:
    # Given a relay that met a broker that was away, and a topic that closed meanwhile
    relay = Relay(
        *(world.stubs, world.broker, lambda _count, now, _due: now + 900.0),
        owner="relay",
        lease=5.0,
        arrives_again=lambda topic: world.topics.sent(topic, 103.0),
    )
    relay.accept([Stub(seq=1, message_id=world.write("a"), topic="orders", content=b"x")], 100.0)
    world.broker.away = True
    assert relay.run_once(101.0).failed == 1
    closed(world)
    waits(world, "b", 3_000.0)

    # When the relay's next message arrives, Then the scheduler sends all the others
    world.broker.away = False
    relay.accept([Stub(seq=3, message_id=world.write("c"), topic="orders", content=b"x")], 100.0)
    assert relay.run_once(103.0).sent == 1
    assert world.scheduler.run_once(103.1).sent == 2


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_after_the_last_fault_everything_is_sent_within_the_bound_that_is_stated(
    world: World, seed: int, kills: bool
) -> None:
    came = Chaos(world, seed, kills=kills).run()

    assert (came.late, came.out_of_order) == ([], [])
    assert came.stubs > 100
