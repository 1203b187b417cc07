"""Who goes first when very much is due: no topic, no old stub and no poison starves the others."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs
from tests.app.kill_switch import Killed
from tests.resend.worlds import MAX, World
from tests.waiting import until

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.errors import ConnectionLost, RemoteError
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.stub import Position
from reliable_mq.resend.due import DueKind, DueTopic, due_topics, next_time, share
from reliable_mq.resend.intake import Intake
from reliable_mq.resend.scheduler import ResendCounts
from reliable_mq.resend.sql_resending import book_of
from reliable_mq.resend.topic_gate import (
    PROBE_STUBS,
    TopicGate,
    TopicRow,
    TopicVerdict,
    after_failures,
    gate_of,
    probe_wait,
    verdict_of,
)
from reliable_mq.wire.codes import ResponseCode


def due_at(world: World, name: str, time: float, **more: Any) -> str:
    stub = world.write(name, **more)
    world.change(stub, resend_time=utc_datetime(time))
    return stub


def test_a_topic_with_very_much_due_leaves_the_others_their_share(world: World) -> None:
    for number in range(30):
        world.write(f"o{number}x")
    for number in range(2):
        due_at(world, f"i{number}x", 106.0, topic="invoices")

    counts = world.new_scheduler("two", batch=10).run_once(107.0)

    assert {"i0x", "i1x"} <= set(world.broker.sent)
    assert (counts.sent, counts.is_full) == (10 - 3, True)  # the share of five, of which two


def test_what_a_topic_does_not_need_of_its_share_goes_to_those_behind_it(world: World) -> None:
    due_at(world, "ax", 104.0, topic="first")
    for number in range(9):
        world.write(f"o{number}x")

    assert world.new_scheduler("two", batch=10).run_once(107.0).sent == 10


def test_more_topics_than_there_is_room_for_take_turns(world: World) -> None:
    for number in range(5):
        due_at(world, f"t{number}x", 100.0 + number, topic=f"topic{number}")
    scheduler = world.new_scheduler("two", batch=2)

    runs = [scheduler.run_once(107.0) for _ in range(3)]

    assert [(run.sent, run.is_full) for run in runs] == [(2, True), (2, True), (1, False)]
    assert world.broker.sent == ["t0x", "t1x", "t2x", "t3x", "t4x"]


def test_what_became_due_last_does_not_wait_for_all_that_became_due_before(world: World) -> None:
    for number in range(40):
        world.write(f"old{number}x")
    due_at(world, "new", 106.0)

    world.new_scheduler("two", batch=8).run_once(107.0)

    assert "new" in world.broker.sent
    assert len(world.broker.sent) == 8


def test_stubs_of_one_key_that_are_due_together_go_in_one_batch_and_in_order(world: World) -> None:
    names = [f"k{number:02}x" for number in range(20)]
    for name in names:
        world.write(name, key="k")

    assert world.scheduler.run_once(105.0).sent == 20
    assert world.broker.sent == names


def test_what_waits_for_an_earlier_one_of_its_key_is_out_of_the_way_until_then(
    world: World,
) -> None:
    # Given one that has to wait for its next send, and many of its key behind it
    due_at(world, "k0x", 150.0, key="k")
    later = [world.write(f"k{number}x", key="k") for number in range(1, 9)]

    # When they are met, Then they wait for it, and the next run need not read past them
    assert world.scheduler.run_once(105.0) == ResendCounts(claimed=8, rested=8)
    assert {world.row(stub)["resend_time"] for stub in later} == {utc_datetime(150.0)}
    assert {world.row(stub)["count"] for stub in later} == {0}
    assert world.scheduler.run_once(106.0) == ResendCounts()
    assert world.scheduler.run_once(150.0).sent == 9
    assert world.broker.sent[0] == "k0x"


def test_what_waits_for_a_person_holds_up_the_unsent_ones_of_its_key(world: World) -> None:
    first = world.write("k0x", key="k")
    later = world.write("k1x", key="k")
    world.change(first, count=MAX, resend_time=None, owner=None)

    assert world.scheduler.run_once(105.0).sent == 0
    assert world.row(later)["resend_time"] > utc_datetime(105.0)


def test_a_person_is_told_of_a_used_up_one_though_others_of_its_key_wait(world: World) -> None:
    world.change(world.write("k0x", key="k"), count=MAX)
    world.write("k1x", key="k")

    assert world.scheduler.run_once(105.0).escalated == 1
    told = [("sends used up", "k0x")]
    assert (world.open_escalations(), world.broker.sent) == (told, [])


class TestPoison:
    """A message that kills whoever sends it."""

    def die(self, names: Sequence[str]) -> None:
        if "poison" in names:
            raise Killed("poison")

    def test_it_takes_no_neighbour_along_and_runs_out_of_sends(self, world: World) -> None:
        # Given a poison among many, and instances that are started again when they die
        stub = world.write("poison")
        for number in range(6):
            world.write(f"n{number}x")
        world.broker.on_send = self.die
        deaths = 0
        for life in range(8):
            now = 105.0 + 70.0 * life
            scheduler = world.new_scheduler(f"life-{life}")
            try:
                while scheduler.run_once(now).is_full:
                    pass
            except Killed:
                deaths += 1

        # Then each send of it has killed one instance, all else was sent once, and a person knows
        assert deaths == MAX
        assert sorted(set(world.broker.sent)) == [f"n{number}x" for number in range(6)]
        assert len(world.broker.sent) == 6
        assert world.open_escalations() == [("sends used up", "poison")]
        assert world.row(stub)["count"] == MAX

    def test_what_was_with_it_goes_alone_and_after_everything_else(self, world: World) -> None:
        world.write("poison")
        world.write("near")
        world.broker.on_send = self.die
        with pytest.raises(Killed):
            world.new_scheduler("dies").run_once(105.0)
        due_at(world, "fresh", 166.0)
        batches: list[list[str]] = []
        world.broker.on_send = batches.append

        assert [world.scheduler.run_once(167.0).sent for _ in range(3)] == [2, 1, 0]
        assert batches == [["fresh"], ["poison"], ["near"]]

    def test_a_new_stub_does_not_wait_for_more_than_one_of_them(self, world: World) -> None:
        # Given many that may be poison, and one that becomes due while the first is sent
        for number in range(5):
            world.change(world.write(f"s{number}x"), count=1, owner="dead")
        batches: list[list[str]] = []

        def on_send(names: list[str]) -> None:
            if not batches:
                due_at(world, "new", 105.0)
            batches.append(names)

        world.broker.on_send = on_send
        until(lambda: not world.scheduler.run_once(105.0).is_full)

        assert batches == [["s0x"], ["new"], ["s1x"], ["s2x"], ["s3x"], ["s4x"]]

    def test_a_send_that_was_not_tried_does_not_count(self, world: World) -> None:
        world.write("k1", key="k")
        behind = world.write("k2", key="k")
        world.broker.refused = {"k1"}

        counts = world.scheduler.run_once(105.0)

        assert (counts.failed, counts.rested) == (1, 1)
        assert world.row(behind)["count"] == 0


def test_a_topic_to_which_nothing_arrives_closes_for_all_and_keeps_its_sends(world: World) -> None:
    # Given a topic that cannot be sent to, and another one that can
    stubs = [world.write(f"m{number:02}x") for number in range(2 * PROBE_STUBS)]
    world.broker.failure = ConnectionLost("gone")
    two = world.new_scheduler("two", batch=PROBE_STUBS)

    # When a batch of it has failed, Then no scheduler sends to it, but one a probe
    assert two.run_once(105.0).failed == PROBE_STUBS
    assert world.scheduler.run_once(105.5) == ResendCounts()
    assert world.topics.rows()["orders"].note == "ConnectionLost: gone"
    probes = [world.scheduler.run_once(106.0), two.run_once(106.0)]
    assert [each.failed for each in probes] == [PROBE_STUBS, 0]
    assert world.scheduler.run_once(107.0) == ResendCounts()
    assert world.scheduler.next_time == 108.0
    assert (
        sum(world.row(stub)["count"] for stub in stubs) == PROBE_STUBS
    )  # probes are none of theirs

    # When the broker is back, Then the first probe opens the topic
    world.broker.failure = None
    assert world.scheduler.run_once(120.0).sent == PROBE_STUBS
    assert world.scheduler.run_once(120.0).sent == PROBE_STUBS
    assert world.topics.rows() == {}


def test_of_two_schedulers_that_want_to_probe_at_one_moment_one_does(world: World) -> None:
    world.topics.add_failures("orders", PROBE_STUBS, 100.0, "gone")

    assert not world.topics.take_probe("orders", 100.9)
    assert world.topics.take_probe("orders", 101.0)
    assert not world.topics.take_probe("orders", 101.0)
    assert not world.topics.take_probe("orders", 115.9)
    assert world.topics.take_probe("orders", 116.0)  # the first one was never heard of again


@pytest.mark.parametrize("number", [1, 3])
def test_stubs_of_a_topic_with_little_traffic_outlive_a_broker_that_is_away_for_long(
    world: World, number: int
) -> None:
    # Given few stubs, and two schedulers that cannot send them, for longer than all waits together
    stubs = [world.write(f"s{each}x") for each in range(number)]
    schedulers = [world.new_scheduler(name, count_max=16) for name in ("a", "b")]
    world.broker.failure = ConnectionLost("gone")
    now, turns = 105.0, 0
    while now < 105.0 + 2 * 16 * 20.0:
        scheduler = schedulers[turns % 2]
        scheduler.run_once(now)
        now, turns = max(scheduler.next_time or 0.0, now + 1.0), turns + 1

    # Then the topic has closed on the sum of what failed, and they keep the sends they had then
    assert world.topics.rows()["orders"].is_closed
    assert sum(world.row(stub)["count"] for stub in stubs) < PROBE_STUBS + number
    assert world.open_escalations() == []

    # When the broker is back, Then all are sent, and nobody was told of any
    world.broker.failure = None
    for _ in range(2):
        now += 60.0
        schedulers[0].run_once(now)
    assert sorted(world.broker.sent) == [f"s{each}x" for each in range(number)]
    assert (world.topics.rows(), world.open_escalations()) == ({}, [])


def test_one_that_arrives_makes_up_for_all_that_failed_before_it(world: World) -> None:
    for number in range(PROBE_STUBS - 1):
        world.write(f"s{number}x")
    scheduler = world.new_scheduler("a", count_max=16)
    world.broker.failure = ConnectionLost("gone")
    scheduler.run_once(105.0)
    assert not world.topics.rows()["orders"].is_closed
    due_at(world, "arrives", 106.0)
    world.broker.failure = None
    assert scheduler.run_once(106.0).sent == 1
    world.broker.failure = ConnectionLost("gone")

    assert scheduler.run_once(115.0).failed == PROBE_STUBS - 1
    assert not world.topics.rows()["orders"].is_closed


def test_a_message_that_is_refused_for_what_it_is_closes_no_topic_and_uses_up_its_sends(
    world: World,
) -> None:
    world.write("odd")
    world.broker.refused = {"odd"}
    scheduler = world.new_scheduler("a", count_max=PROBE_STUBS + 2)

    for turn in range(PROBE_STUBS + 3):
        scheduler.run_once(105.0 + 30.0 * turn)

    assert world.topics.rows() == {}
    assert world.open_escalations() == [("sends used up", "odd")]


def test_a_message_that_the_broker_takes_for_illegal_closes_no_topic(world: World) -> None:
    world.write("odd")
    world.broker.failure = RemoteError(ResponseCode.MESSAGE_ILLEGAL, "maxMessageSize is 1024")
    scheduler = world.new_scheduler("a", count_max=PROBE_STUBS + 2)

    for turn in range(PROBE_STUBS + 3):
        scheduler.run_once(105.0 + 30.0 * turn)

    assert world.topics.rows() == {}
    assert world.open_escalations() == [("sends used up", "odd")]


def test_one_message_that_nobody_can_send_does_not_close_its_topic(world: World) -> None:
    for number in range(PROBE_STUBS):
        world.write(f"m{number}x")
    world.broker.refused = {f"m{number}x" for number in range(1, PROBE_STUBS)}

    world.scheduler.run_once(105.0)

    assert world.topics.rows() == {}


def test_a_paused_topic_waits_until_a_person_or_a_time_says_so(world: World) -> None:
    world.write("o")
    world.write("i", topic="invoices")
    world.topics.pause("orders", None, "jane", "the consumer is broken", 101.0)
    world.topics.pause("invoices", 110.0, "jane", "", 101.0)

    assert world.scheduler.run_once(105.0) == ResendCounts()
    assert world.scheduler.run_once(110.0).sent == 1
    assert world.broker.sent == ["i"]
    assert world.topics.resume("orders", "joe", "mended", 111.0)
    assert not world.topics.resume("orders", "joe", "twice", 111.0)
    assert world.scheduler.run_once(112.0).sent == 1


def test_where_sends_are_slow_fewer_are_claimed_at_once(world: World) -> None:
    intake = Intake(book_of(world.database), owner="x", lease=60.0, batch=100, count_max=MAX)
    rooms = []
    for took in (1.0, 16.0, 16.0, 5.0, 1.0, 1.0, 1.0):
        intake.fit(intake._room, took)
        rooms.append(intake._room)

    assert rooms == [100, 50, 25, 25, 50, 100, 100]
    for _ in range(20):
        intake.fit(100, 60.0)
    assert intake._room == 1
    for _ in range(20):
        intake.fit(1, 0.001)
    assert intake._room == 4  # one that was quick says nothing of a hundred


def test_the_agenda_says_what_is_due_when_of_each_kind_and_topic(world: World) -> None:
    due_at(world, "a", 120.0)
    due_at(world, "b", 130.0)
    due_at(world, "c", 110.0, topic="invoices")
    world.sent("d")
    world.change(world.write("e"), given_up=True)
    world.change(world.write("f"), status=1, resend_time=None)

    agenda = world.new_due().agenda()

    assert {(each.kind.value, each.topic, each.first_time) for each in agenda} == {
        ("unsent", "orders", 120.0),
        ("unsent", "invoices", 110.0),
        ("sent", "orders", 105.0),
    }
    world.scheduler.run_once(100.0)
    assert world.scheduler.next_time == 105.0


def test_shares_are_equal_and_at_least_one() -> None:
    agenda = [DueTopic(DueKind.UNSENT, name, time) for name, time in (("b", 2.0), ("a", 1.0))]

    assert due_topics(agenda, DueKind.UNSENT, 2.0, 5) == ["a", "b"]
    assert due_topics(agenda, DueKind.UNSENT, 1.5, 5) == ["a"]
    assert due_topics(agenda, DueKind.SENT, 2.0, 5) == []
    assert (share(10, 3), share(1, 3), share(0, 1)) == (4, 1, 1)
    assert (next_time(agenda, 0.0), next_time(agenda, 2.0)) == (1.0, None)


def test_a_topics_gate_follows_from_its_row() -> None:
    failing = TopicRow(topic="t", failures=PROBE_STUBS - 1)
    closed = TopicRow(topic="t", failures=PROBE_STUBS, probes=1, probe_time=50.0)

    assert gate_of(None, 1.0) is TopicGate.OPEN
    assert gate_of(failing, 1.0) is TopicGate.OPEN
    assert gate_of(closed, 49.0) is TopicGate.CLOSED
    assert gate_of(closed, 50.0) is TopicGate.PROBE
    assert gate_of(TopicRow(topic="t", is_paused=True), 1e12) is TopicGate.PAUSED
    assert gate_of(TopicRow(topic="t", is_paused=True, paused_until=5.0), 5.0) is TopicGate.OPEN
    assert [probe_wait(probes) for probes in (1, 2, 3, 6, 99)] == [1.0, 2.0, 4.0, 10.0, 10.0]
    assert after_failures(failing, 1, 49.0) == closed
    assert after_failures(TopicRow(topic="t"), PROBE_STUBS - 1, 49.0) == failing
    later = after_failures(closed, 1, 50.0)
    assert (later.failures, later.probes, later.probe_time) == (PROBE_STUBS + 1, 2, 52.0)


def test_what_sends_say_of_their_topic() -> None:
    arrived = SendOutcome("a", 1, 9.0, position=Position("b", 0, 1))
    failed, refused = SendOutcome("b", 1, 9.0, error="gone"), SendOutcome("c", 1, 9.0, error="odd")
    refused = structs.replace(refused, is_refused=True)

    assert verdict_of([failed, refused]) == TopicVerdict(failures=1, error="gone")
    assert verdict_of([failed, arrived]) == TopicVerdict(arrived=True)
    assert verdict_of([refused]) == verdict_of([]) == TopicVerdict()
