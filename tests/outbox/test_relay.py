"""The relay's lanes, over a table in memory and a broker that can say no."""

import logging
from collections.abc import Collection, Sequence
from datetime import timedelta

import pytest

from reliable_mq.errors import NoTimers, NotSent, Refused, Unavailable
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.relay import Relay, SendOutcome
from reliable_mq.outbox.stub import Stub


class MemoryBook:
    """A table of stubs: ids that are there, ids that wait for somebody else's."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.blocked: set[str] = set()
        self.outcomes: list[SendOutcome] = []
        self.renewed: list[tuple[set[str], float]] = []
        self.down = False

    def sendable(self, message_ids: Collection[str], owner: str) -> dict[str, bool]:
        if self.down:
            raise ConnectionError("database")
        return {each: each in self.blocked for each in message_ids if each in self.there}

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None:
        self.outcomes += outcomes
        self.there -= {outcome.message_id for outcome in outcomes}

    def record_late(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> set[str]:
        self.record(outcomes, owner, now)
        return set()

    def renew(self, message_ids: Collection[str], owner: str, until: float) -> None:
        self.renewed.append((set(message_ids), until))


class MemoryBroker:
    """A broker that refuses some messages, and whatever follows them with the same key."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.refused: set[str] = set()
        self.status = SendStatus.SEND_OK
        self.status_of: dict[str, SendStatus] = {}
        self.down = False
        self.got: list[Message] = []
        self.old: set[str] = set()
        self.errors: dict[str, Exception] = {}

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        if self.down:
            raise Unavailable("nobody there")
        self.calls.append([message.message_id for message in messages])
        self.got += messages
        results: list[SendResult | Exception] = []
        stopped: set[str] = set()
        for number, message in enumerate(messages):
            if message.ordering_key in stopped:
                results.append(NotSent("an earlier one failed"))
            elif message.delay is not None and message.message_id in self.old:
                results.append(NoTimers("the broker at old is older than 5.0 and has no timers"))
            elif error := self.errors.get(message.message_id):
                results.append(error)
            elif message.message_id in self.refused:
                results.append(Unavailable("no"))
                stopped |= {message.ordering_key} - {""}
            else:
                results.append(
                    SendResult(
                        status=self.status_of.get(message.message_id, self.status),
                        message_id=message.message_id,
                        offset_message_id="",
                        queue=MessageQueue(message.topic, "b", 0),
                        queue_offset=number,
                    )
                )
        return results


class World:
    def __init__(self, batch_max: int = 4) -> None:
        self.book = MemoryBook()
        self.broker = MemoryBroker()
        self.relay = Relay(
            self.book,
            self.broker,
            lambda count, now, _deliver: now + 10 * count,
            owner="me",
            lease=5.0,
            batch_max=batch_max,
        )

    def accept(self, *names: str, key: str = "", written: float = 0.0) -> None:
        stubs = [
            Stub(seq=seq, message_id=name, topic="t", content=b"x", ordering_key=key)
            for seq, name in enumerate(names)
        ]
        self.book.there |= set(names)
        self.relay.accept(stubs, written)
        self.relay.invariants()


@pytest.fixture
def world() -> World:
    return World()


def test_committed_stubs_are_sent_and_their_positions_recorded(world: World) -> None:
    world.accept("a", "b")

    counts = world.relay.run_once(1.0)

    assert (counts.sent, counts.waiting) == (2, 0)
    assert [(each.message_id, each.count, each.next_time) for each in world.book.outcomes] == [
        ("a", 1, 11.0),
        ("b", 1, 11.0),
    ]
    assert all(each.position is not None for each in world.book.outcomes)


def test_a_stub_that_cannot_be_read_back_is_never_sent(world: World) -> None:
    world.accept("a", "gone", "c")
    world.book.there.remove("gone")

    counts = world.relay.run_once(1.0)

    assert world.broker.calls == [["a", "c"]]
    assert (counts.dropped, counts.waiting) == (1, 0)


def test_one_of_a_key_that_a_savepoint_took_back_does_not_hold_up_the_others(
    world: World,
) -> None:
    world.accept("k1", "gone", "k3", key="k")
    world.book.there.remove("gone")

    counts = world.relay.run_once(1.0)

    assert world.broker.calls == [["k1", "k3"]]
    assert (counts.sent, counts.dropped, counts.waiting) == (2, 1, 0)


def test_stubs_of_one_key_leave_in_their_order(world: World) -> None:
    world.accept("k1", "k2", "k3", key="k")

    world.relay.run_once(1.0)

    assert world.broker.calls == [["k1", "k2", "k3"]]


def test_when_one_of_a_key_fails_the_later_ones_are_left_to_wait_behind_it(world: World) -> None:
    # Given three of one key and one of another, and a broker that refuses the second of the three
    world.accept("k1", "k2", "k3", key="k")
    world.accept("other", key="o")
    world.broker.refused.add("k2")

    # When the relay runs until it has nothing left
    world.relay.run_once(1.0)
    world.relay.run_once(1.1)

    # Then the third was never sent, and only what was tried counts as a send
    assert world.relay.waiting == 0
    assert {each.message_id for each in world.book.outcomes} == {"k1", "k2", "other"}
    failed = next(each for each in world.book.outcomes if each.message_id == "k2")
    assert failed.position is None
    assert failed.error == "Unavailable: no"


def test_an_earlier_stub_of_another_process_goes_first(world: World) -> None:
    world.accept("k1", "k2", key="k")
    world.accept("free")
    world.book.blocked.add("k1")

    assert world.relay.run_once(1.0).waiting == 2
    assert world.broker.calls == [["free"]]
    world.book.blocked.clear()
    world.relay.run_once(1.1)
    assert world.broker.calls == [["free"], ["k1", "k2"]]


def test_a_stub_whose_commit_was_late_is_claimed_once_more_and_sent(world: World) -> None:
    """A transaction may last longer than the lease that its stubs were written with."""
    world.accept("late", written=0.0)
    world.accept("fresh", written=99.0)

    counts = world.relay.run_once(100.0)

    assert world.book.renewed == [({"late"}, 105.0)]
    assert (counts.sent, counts.dropped) == (2, 0)


def test_a_late_stub_that_the_scheduler_took_meanwhile_is_left_to_it(world: World) -> None:
    world.accept("late", written=0.0)
    world.book.there.remove("late")  # it is somebody else's now

    counts = world.relay.run_once(100.0)

    assert (world.broker.calls, counts.dropped, counts.waiting) == ([], 1, 0)


def test_a_stub_that_waits_for_anothers_is_renewed_once_and_then_left_to_the_scheduler(
    world: World,
) -> None:
    world.accept("waits", key="k", written=0.0)
    world.book.blocked.add("waits")

    for now in (1.0, 2.4, 2.6, 7.5):
        assert world.relay.run_once(now).waiting == 1
        world.relay.invariants()
    assert world.book.renewed == [({"waits"}, 7.6)]
    assert world.relay._lease_due == 7.6, "or each run would look at all stubs until then"
    assert world.relay.run_once(7.7).dropped == 1


def test_a_broker_that_is_away_is_a_failed_send_with_its_reason(world: World) -> None:
    world.accept("a")
    world.broker.down = True

    counts = world.relay.run_once(1.0)

    assert (counts.sent, counts.failed, counts.waiting) == (0, 1, 0)
    assert world.book.outcomes[0].error == "Unavailable: nobody there"


def test_nothing_is_lost_while_the_table_cannot_be_read(world: World) -> None:
    world.accept("a")
    world.book.down = True

    with pytest.raises(ConnectionError):
        world.relay.run_once(1.0)
    assert world.relay.waiting == 1
    world.book.down = False
    assert world.relay.run_once(1.1).sent == 1


def test_a_hot_key_does_not_keep_the_others_waiting(world: World) -> None:
    world.accept(*(f"hot{number}" for number in range(8)), key="hot")
    world.accept("cold", key="cold")

    world.relay.run_once(1.0)
    world.relay.run_once(1.1)

    assert world.broker.calls[0] == ["hot0", "hot1", "hot2", "hot3"]
    assert world.broker.calls[1][0] == "cold"


def test_a_batch_holds_at_most_32_of_a_key_and_the_other_keys_fill_the_rest() -> None:
    world = World(batch_max=64)
    world.accept(*(f"hot{number}" for number in range(40)), key="hot")
    world.accept("cold", key="cold")

    world.relay.run_once(1.0)
    world.relay.run_once(1.1)

    first, second = world.broker.calls
    assert first == [*(f"hot{number}" for number in range(32)), "cold"]
    assert second == [f"hot{number}" for number in range(32, 40)]


@pytest.mark.parametrize("status", [each for each in SendStatus if each != SendStatus.SEND_OK])
def test_an_answer_that_a_crash_can_take_back_is_a_failed_send(
    world: World, status: SendStatus
) -> None:
    world.accept("a")
    world.broker.status = status

    counts = world.relay.run_once(1.0)

    assert (counts.sent, counts.failed) == (0, 1)
    assert world.book.outcomes[0].position is None
    assert status.name in (world.book.outcomes[0].error or "")


def accept_late(world: World, deliver_time: float) -> None:
    late = Stub(seq=1, message_id="late", topic="t", content=b"x", deliver_time=deliver_time)
    world.book.there.add("late")
    world.relay.accept([late], 1.5)
    world.accept("other")


@pytest.mark.parametrize(
    ("deliver_time", "delay"), [(7201.5, timedelta(seconds=7200.5)), (1.0, None), (0.5, None)]
)
def test_a_broker_is_asked_for_what_is_left_by_the_clock_of_the_relay(
    world: World, deliver_time: float, delay: timedelta | None
) -> None:
    accept_late(world, deliver_time)

    counts = world.relay.run_once(1.0)

    assert (counts.sent, counts.waiting) == (2, 0)
    assert {each.message_id: each.delay for each in world.broker.got} == {
        "late": delay,
        "other": None,
    }


def test_where_there_are_no_timers_a_level_is_taken_and_what_that_means_is_recorded(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # Given one broker that has timers, and another one that is too old for them
    world.broker.old.add("late")
    accept_late(world, 4.0)

    # When both messages are sent
    with caplog.at_level(logging.WARNING):
        counts = world.relay.run_once(1.0)

    # Then the delay of three seconds is one of five, and the stub says so
    assert (counts.sent, counts.failed) == (2, 0)
    assert [each.delay_level for each in world.broker.got if each.message_id == "late"] == [0, 2]
    (late,) = (each for each in world.book.outcomes if each.message_id == "late")
    assert (late.count, late.arrives, late.is_refused) == (1, 6.0, False)
    assert "a delay level of 5 s: the broker at old is older than 5.0" in late.note
    assert caplog.text.count("older than 5.0") == 1


def test_a_second_send_by_level_that_fails_takes_nothing_from_what_the_first_one_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given one message that goes again by delay level, and a client that raises then
    world.broker.old.add("late")
    accept_late(world, 4.0)
    send_many = world.broker.send_many

    def once(messages: Sequence[Message]) -> list[SendResult | Exception]:
        results = send_many(messages)
        world.broker.down = True
        return results

    monkeypatch.setattr(world.broker, "send_many", once)

    # When both are sent, Then only that one has failed
    counts = world.relay.run_once(1.0)
    assert (counts.sent, counts.failed) == (1, 1)
    of = {each.message_id: each for each in world.book.outcomes}
    assert of["other"].position is not None
    assert of["late"].error == "Unavailable: nobody there"


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (NoTimers("the broker at other is older than 5.0"), 101.0 + 9 * 3600 - 7200),
        (Refused(13, "timer message illegal, the delay time"), 101.0 + 4.5 * 3600),
    ],
)
def test_what_is_too_far_ahead_for_a_broker_is_tried_again_in_time_and_not_counted(
    world: World, error: Exception, again: float
) -> None:
    world.broker.errors["late"] = error
    accept_late(world, 101.0 + 9 * 3600)

    world.relay.run_once(101.0)

    (late,) = (each for each in world.book.outcomes if each.message_id == "late")
    assert (late.count, late.position, late.is_refused) == (0, None, True)
    assert late.next_time == pytest.approx(again)


def test_what_is_illegal_for_another_reason_is_refused_also_with_a_time(world: World) -> None:
    world.broker.errors["late"] = Refused(13, "the message body size exceeds the limit")
    accept_late(world, 9999.0)

    world.relay.run_once(1.0)

    (late,) = (each for each in world.book.outcomes if each.message_id == "late")
    assert (late.count, late.is_refused) == (1, True)


def test_a_stub_that_the_scheduler_took_is_dropped_from_behind_a_fresh_one(world: World) -> None:
    world.relay.accept([Stub(seq=2, message_id="b", topic="t", content=b"", ordering_key="k")], 0.0)
    world.relay.accept([Stub(seq=1, message_id="a", topic="t", content=b"", ordering_key="k")], 4.0)
    world.book.there = {"a"}

    counts = world.relay.run_once(5.5)

    assert (world.broker.calls, counts.dropped) == ([["a"]], 1)


def test_what_follows_a_shaky_one_of_its_key_counts_as_unsent_too(world: World) -> None:
    # Given two of one key and one of another, and a broker that did not flush the first
    world.accept("k1", "k2", key="k")
    world.accept("other", key="o")
    world.broker.status_of["k1"] = SendStatus.FLUSH_DISK_TIMEOUT

    # When the relay runs
    counts = world.relay.run_once(1.0)

    # Then both of the key will be sent again, in their order
    assert (counts.sent, counts.failed) == (1, 2)
    acknowledged = [each.message_id for each in world.book.outcomes if each.position]
    assert acknowledged == ["other"]
