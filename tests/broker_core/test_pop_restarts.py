"""Popped messages over a stop and a kill: none is lost, none early, none twice."""

import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC
from tests.broker_core.pop_world import INVISIBLE_MS, RETRY, PopWorld

from reliable_mq.wire.codes import RequestCode as Ask


def send_some(world: PopWorld, count: int) -> None:
    for number in range(count):
        world.send(b"%d" % number)


def note_timers(world: PopWorld) -> None:
    """Save what the timers have delivered, as the broker does every second."""
    work = world.core.begin_timer_checkpoint(world.now_ms)
    assert work is not None
    work()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restart_loses_no_message_and_brings_none_back_early(*, is_killed: bool) -> None:
    world = PopWorld()
    send_some(world, 4)
    messages = world.pop()
    world.pass_time(2_000)
    world.ack(messages[1])
    world.restart(is_killed=is_killed)

    assert world.bodies() == []
    world.ack(messages[2])
    world.pass_time(INVISIBLE_MS - 2_001)
    assert world.bodies() == []
    world.pass_time(1)

    assert world.bodies() == [b"0", b"3"]


@pytest.mark.parametrize("passed_ms", [INVISIBLE_MS - 500, INVISIBLE_MS, INVISIBLE_MS + 500])
@pytest.mark.parametrize("is_noted", [False, True])
def test_a_kill_when_messages_come_back_brings_each_back_once(
    passed_ms: int, *, is_noted: bool
) -> None:
    world = PopWorld()
    send_some(world, 3)
    world.pop()
    world.pass_time(passed_ms, step=20)
    if is_noted:
        note_timers(world)
    world.restart(is_killed=True)

    world.pass_time(2_000, step=20)

    assert [record.body for record in world.records(RETRY)] == [b"0", b"1", b"2"]


def test_a_message_that_came_back_before_a_kill_does_not_come_back_after_its_ack() -> None:
    world = PopWorld()
    send_some(world, 1)
    world.pop()
    world.pass_time(INVISIBLE_MS, step=20)
    (again,) = world.pop()
    world.ack(again)
    world.restart(is_killed=True)

    world.pass_time(3 * INVISIBLE_MS)

    assert world.bodies() == []


def test_a_kill_after_a_pop_does_not_hand_its_messages_out_again() -> None:
    world = PopWorld()
    send_some(world, 5)
    world.pop(maxMsgNums=2)
    world.restart(is_killed=True)

    assert world.bodies() == [b"2", b"3", b"4"]


def test_offsets_that_were_saved_later_are_not_moved_by_older_checkpoints() -> None:
    world = PopWorld()
    send_some(world, 5)
    for message in world.pop():
        world.ack(message)
    world.pass_time(12_000)  # the offsets are saved, and what they are worth
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": START_MS, "isForce": "true"}
    world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    world.pass_time(12_000)
    world.restart(is_killed=True)

    assert world.bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_reset_wins_over_a_pop_that_is_being_stored() -> None:
    world = PopWorld()
    send_some(world, 2)
    world.pop(maxMsgNums=1)
    world.is_writing = False
    assert world.begin(Ask.POP_MESSAGE, world.pop_header()) is None
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": START_MS, "isForce": "true"}
    world.begin(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    world.is_writing = True
    world.finish_turn()

    assert world.state.offsets.all_of(GROUP, TOPIC) == {0: 0}
    assert world.bodies() == [b"0", b"1"]
