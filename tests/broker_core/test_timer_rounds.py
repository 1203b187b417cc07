"""Rounds of timed messages in the wheel: the last entry of a file never names an old message.

A message that ends its round gets another entry in the timer log, which names its old record.
"""

import pytest
from tests.broker_core.broker_world import START_MS, there
from tests.broker_core.test_housekeeping import age, clean
from tests.broker_core.test_late_timers import checkpoint
from tests.broker_core.test_pop_gone import ALL_DAY
from tests.broker_core.test_timers import WorldAt, delivered, send

from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.store.timer_log import SIZE
from reliable_mq.testing.memory_disk import MemoryDisk

FILE_SIZE = 4096
IN_FILE = FILE_SIZE // SIZE


@pytest.mark.parametrize("count", [IN_FILE - 3, IN_FILE - 2, IN_FILE - 1])
def test_no_message_is_lost_with_an_old_one_at_the_end_of_a_round(count: int) -> None:
    """The last entry of a file of the timer log says when the file goes with its messages."""
    world = WorldAt(MemoryDisk(), START_MS, timerRollWindowSlot="20", deleteWhen=ALL_DAY)
    world.create_topic()
    clean(world)
    send(world, b"round", TIMER_DELIVER_MS=START_MS + 20_500)
    for _ in range(70):
        world.send(b"y" * 4_000)
    world.pass_time(5_000)
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        send(world, body, TIMER_DELIVER_MS=START_MS + 24_500)
    world.pass_time(9_000)
    last = [b"last but one", b"last"]
    for body in last:
        send(world, body, TIMER_DELIVER_MS=START_MS + 24_500)
    world.pass_time(7_000)
    age(world, 1, 80)
    clean(world)
    clean(world)
    checkpoint(world)
    world = WorldAt(world.disk, world.now_ms, timerRollWindowSlot="20")

    world.pass_time(5_000)

    assert delivered(world)[-len(bodies + last) :] == bodies + last


@pytest.mark.parametrize("count", [1, IN_FILE - 2, IN_FILE - 1])
def test_the_last_entry_of_a_stopped_broker_names_the_newest_message(count: int) -> None:
    """Apache's broker takes up all messages behind it. It would deliver some twice."""
    world = WorldAt(MemoryDisk(), START_MS, timerRollWindowSlot="4")
    world.create_topic()
    send(world, b"round", TIMER_DELIVER_MS=START_MS + 6_500)
    world.pass_time(1_000)
    for number in range(count):
        send(world, b"%d" % number, TIMER_DELIVER_MS=START_MS + 4_500)
    world.pass_time(4_500)
    world.stop()

    world = WorldAt(world.disk, world.now_ms, timerRollWindowSlot="4")
    last = there(world.state.timers._files._log.last())
    record = there(world.state.store.read_record(last.commit_log_offset))
    assert (record.topic, record.queue_offset) == (TIMER_TOPIC, count)
    world.pass_time(3_000)
    assert sorted(delivered(world)) == sorted([b"round", *(b"%d" % n for n in range(count))])
