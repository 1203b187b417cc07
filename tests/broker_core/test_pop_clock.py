"""Popped messages when the clock is set: none comes back after its acknowledgement."""

import pytest
from tests.broker_core.pop_world import INVISIBLE_MS, RETRY, PopWorld, world_behind_timers

from reliable_mq.wire.codes import ResponseCode as Answer


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("back_ms", [30_000, 120_000, 7_200_000])
def test_an_acknowledgement_counts_also_after_the_clock_was_set_back(
    back_ms: int, *, is_restarted: bool
) -> None:
    world = PopWorld()
    world.send(b"done")
    (message,) = world.pop(invisibleTime=300_000)
    world.pass_time(1_000)
    if is_restarted:
        world.stop()
    world.now_ms -= back_ms
    if is_restarted:
        world.start()

    assert world.ack(message).code == Answer.SUCCESS
    world.pass_time(back_ms + 400_000, step=1_000)

    assert world.bodies() == []


@pytest.mark.parametrize("wait_ms", [500, 25_000, 31_000, 33_000])
def test_an_acknowledgement_counts_while_the_timers_are_ahead_of_the_clock(wait_ms: int) -> None:
    world = PopWorld()
    world.send(b"done")
    world.send(b"other")
    world.pop(maxMsgNums=1, invisibleTime=INVISIBLE_MS)
    world.now_ms += 30_000  # and the timers go there
    world.pass_time(2_000)
    world.now_ms -= 30_000
    (message,) = world.pop(maxMsgNums=1, invisibleTime=INVISIBLE_MS, queueId=0)
    assert message.body == b"other"
    world.pass_time(wait_ms)

    assert world.ack(message).code == Answer.SUCCESS
    world.pass_time(60_000)

    assert [record.body for record in world.records(RETRY)] == [b"done"]


def test_no_message_comes_back_early_because_the_clock_was_set_back() -> None:
    world = PopWorld()
    world.send(b"one")
    world.send(b"two")
    world.pop(maxMsgNums=1, invisibleTime=INVISIBLE_MS)
    world.now_ms += 30_000
    world.pass_time(2_000)
    world.now_ms -= 30_000
    (message,) = world.pop(maxMsgNums=1, queueId=0)

    world.pass_time(message.handle.revive_ms - world.now_ms - 1)
    assert [record.body for record in world.records(RETRY)] == [b"one"]
    world.pass_time(1)

    assert [record.body for record in world.records(RETRY)] == [b"one", b"two"]


def test_an_extension_of_a_time_to_come_is_refused() -> None:
    world = PopWorld()
    world.send(b"one")
    (message,) = world.pop()
    forged = message.handle._replace(popped_ms=2**62).text()

    answer = world.extend(message, 1_000, extraInfo=forged)

    assert answer.code == Answer.SYSTEM_ERROR
    assert "of a time to come" in str(answer.remark)


def test_all_messages_of_two_pops_with_one_key_come_back() -> None:
    """While the clock is behind the timers, two pops from one place have the same time."""
    world = world_behind_timers()
    world.send(b"0")
    (first,) = world.pop(maxMsgNums=1, queueId=0)
    world.send(b"1")
    world.commit(1)
    again = world.pop(maxMsgNums=2, queueId=0)
    assert [message.body for message in again] == [b"0", b"1"]
    assert first.handle.popped_ms == again[0].handle.popped_ms
    world.pass_time(10 * INVISIBLE_MS)

    bodies = [record.body for record in world.records(RETRY)]
    assert bodies[1:] == [b"0", b"0", b"1"]
