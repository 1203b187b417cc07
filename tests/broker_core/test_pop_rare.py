"""Popped messages in rare states of the timers: none comes back after its acknowledgement."""

import json

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC, send_header
from tests.broker_core.pop_world import (
    BEHIND_MS,
    INVISIBLE_MS,
    RETRY,
    PopWorld,
    Taken,
    ack_header,
    world_behind_timers,
)
from tests.broker_core.test_pop_restarts import note_timers, send_some

from reliable_mq.wire.codes import RequestCode as Ask

DAY_MS = 86_400_000


def back(world: PopWorld) -> list[bytes]:
    return [record.body for record in world.records(RETRY)]


def test_acknowledgements_behind_a_message_without_a_slot_count() -> None:
    """The timers are 13 days behind, so a wheel of two weeks has no slot of the day after next."""
    world = PopWorld()
    send_some(world, 2)
    (first,) = world.pop(maxMsgNums=1)
    world.pass_time(1_000)
    world.restart()
    world.now_ms += 13 * DAY_MS
    header = send_header(TOPIC, 0, TIMER_DELAY_SEC=str(2 * 86_400 - 10))
    world.begin(Ask.SEND_MESSAGE_V2, header, b"far")
    world.ack(first)
    world.pass_time(3_000)
    assert back(world) == []
    world.pass_time(2 * DAY_MS, step=3_600_000)
    assert [record.body for record in world.records(TOPIC)] == [b"0", b"1", b"far"]


def test_a_message_without_a_slot_does_not_stop_the_timers() -> None:
    """They are more than two weeks behind: popped messages come back before they go on to it."""
    world = PopWorld()
    send_some(world, 2)
    world.pop()
    world.pass_time(1_000)
    world.now_ms += 15 * DAY_MS
    world.restart()
    header = send_header(TOPIC, 0, TIMER_DELAY_SEC=str(2 * 86_400 - 10))
    world.begin(Ask.SEND_MESSAGE_V2, header, b"far")
    world.pass_time(1_000)
    assert back(world) == [b"0", b"1"]
    world.pass_time(2 * DAY_MS, step=3_600_000)
    assert [record.body for record in world.records(TOPIC)] == [b"0", b"1", b"far"]


def test_a_full_wheel_goes_on_when_an_acknowledgement_ends_what_it_waited_for() -> None:
    """Nothing more is due in the wheel, so no other second is over."""
    world = PopWorld()
    send_some(world, 1)
    (first,) = world.pop()
    world.pass_time(1_000)
    world.now_ms += 15 * DAY_MS
    world.restart()
    world.is_writing = False
    world.begin(Ask.ACK_MESSAGE, ack_header(first))
    world.pass_time(200)
    assert world.state.timers.behind_ms(world.now_ms) > DAY_MS // 2
    world.is_writing = True
    world.finish_turn()
    world.pass_time(1_000)
    assert world.state.timers.behind_ms(world.now_ms) == 0
    assert back(world) == []


@pytest.mark.parametrize("days", [13, 26, 60])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_broker_that_was_away_for_weeks_starts_and_goes_on(days: int, *, is_killed: bool) -> None:
    """A kill leaves no note of what was taken up, so that is taken up again weeks later."""
    world = PopWorld()
    send_some(world, 2)
    world.pop()
    if not is_killed:
        world.pass_time(1_000)
    world.restart(is_killed=is_killed)
    world.now_ms += days * DAY_MS
    world.pass_time(1_000)
    assert back(world) == [b"0", b"1"]
    world.restart()
    world.pass_time(1_000)
    assert world.state.timers.behind_ms(world.now_ms) == 0


def test_timers_that_were_idle_for_weeks_take_a_message_up() -> None:
    """What they have delivered is noted rarely then, and a kill comes before the next note."""
    world = PopWorld()
    send_some(world, 2)
    world.pop(maxMsgNums=1, invisibleTime=2_000)
    world.pass_time(3_000)
    note_timers(world)
    world.now_ms += 40 * DAY_MS
    world.pop(maxMsgNums=1)
    world.restart(is_killed=True)
    world.pass_time(12_000)
    assert back(world) == [b"0", b"1"]


@pytest.mark.parametrize("slots", [2, 3, 6, 8])
@pytest.mark.parametrize("acked_ms", [3_500, 5_500, 6_900, 8_500])
@pytest.mark.parametrize("away_ms", [1_000, 20_000])
def test_an_acknowledgement_counts_after_its_checkpoint_was_on_its_way_round_the_wheel(
    slots: int, acked_ms: int, away_ms: int
) -> None:
    """A broker is away while a checkpoint should enter the wheel again, and when it is due."""
    world = PopWorld(None, timerRollWindowSlot=str(slots))
    send_some(world, 2)
    messages = world.pop()
    world.pass_time(acked_ms, step=20)
    world.ack(messages[0])
    world.pass_time(100, step=20)
    note_timers(world)
    world.restart(is_killed=True)
    world.now_ms += away_ms
    world.pass_time(30_000, step=20)
    assert back(world) == [b"1"]


def test_a_slave_does_not_deliver_what_is_popped_and_on_its_way_round_the_wheel() -> None:
    """It has stood in for its master, and leaves what was popped to it."""
    world = PopWorld(None, timerRollWindowSlot="6")
    send_some(world, 1)
    world.pop()
    world.pass_time(1_000)
    world.state.timers.take_back(1_000, world.now_ms + 60_000, world.now_ms)
    world.pass_time(20_000)
    assert back(world) == [b"0"]


def batch_of(*messages: Taken) -> bytes:
    """Return a request's body that acknowledges messages, each by its own handle."""
    acks = [
        {
            "c": GROUP,
            "t": TOPIC,
            "r": each.handle.kind,
            "so": each.handle.start_offset,
            "q": each.handle.queue_id,
            "rq": each.handle.revive_queue,
            "pt": each.handle.popped_ms,
            "it": each.handle.invisible_ms,
            "b": "AQ==",
        }
        for each in messages
    ]
    return json.dumps({"brokerName": "b", "acks": acks}).encode()


@pytest.mark.parametrize("times_ms", [(10_000, 20_000), (20_000, 10_000), (10_000, 10_100)])
def test_acknowledgements_of_one_key_and_two_times_count_each_at_its_time(
    times_ms: tuple[int, int],
) -> None:
    """While the clock is behind the timers, two pops from one place have the same time."""
    world = world_behind_timers()
    world.send(b"0")
    (one,) = world.pop(maxMsgNums=1, queueId=0, invisibleTime=times_ms[0])
    world.commit(1)
    (other,) = world.pop(maxMsgNums=1, queueId=0, invisibleTime=times_ms[1])
    assert one.handle.popped_ms == other.handle.popped_ms

    assert world.ask(Ask.BATCH_ACK_MESSAGE, {}, batch_of(one, other)).code == 0
    world.pass_time(12 * INVISIBLE_MS)

    assert back(world)[1:] == []


@pytest.mark.parametrize("is_first_of_two", [False, True])
def test_a_late_checkpoint_brings_nothing_back_that_another_one_of_its_key_has(
    *, is_first_of_two: bool
) -> None:
    """The second one is stored late, and a kill comes before its second counts as delivered."""
    world = world_behind_timers(900)
    popped_ms = world.now_ms + BEHIND_MS
    send_some(world, 2)
    world.pop(maxMsgNums=1 + is_first_of_two, queueId=0)
    world.commit(1)
    world.is_writing = False
    world.begin(Ask.POP_MESSAGE, world.pop_header(maxMsgNums=1, queueId=0))
    world.now_ms = popped_ms + INVISIBLE_MS - 1_100
    world.pass_time(300, step=20)
    world.is_writing = True
    world.finish_turn()
    world.pass_time(860, step=20)
    came = [b"0", b"1"][: 1 + is_first_of_two]
    assert back(world)[1:] == came
    note_timers(world)
    world.restart(is_killed=True)
    world.pass_time(10_000, step=20)

    assert back(world)[1:] == came


@pytest.mark.parametrize("longer_ms", [0, 300, 900])
def test_a_later_checkpoint_brings_nothing_back_that_an_earlier_one_of_its_key_has(
    longer_ms: int,
) -> None:
    """The second of the first one counts as delivered, and a kill comes before that of the other.

    The clock is behind the timers when both are popped.
    """
    world = world_behind_timers(900)
    popped_ms = world.now_ms + BEHIND_MS
    world.send(b"0")
    world.pop(maxMsgNums=1, queueId=0)
    world.commit(1)
    world.pop(maxMsgNums=1, queueId=0, invisibleTime=INVISIBLE_MS + longer_ms)
    world.now_ms = popped_ms + INVISIBLE_MS - 1_500
    world.pass_time(1_580, step=20)
    assert back(world)[1:] == [b"0"]
    note_timers(world)
    world.restart(is_killed=True)
    world.pass_time(10_000, step=20)

    assert back(world)[1:] == [b"0"]
