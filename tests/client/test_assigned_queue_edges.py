"""The queue of a client at its edges: its first start, what tools are told, what it forgets."""

import gc
import tracemalloc

from tests.client.script import says
from tests.client.scripted_consumer import ext
from tests.client.test_assigned_queue import NOW, QUEUE, assigned, filled, message, offsets
from tests.client.test_pulling import PULL, reading, with_slave

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.settings import ClientSettings
from reliable_mq.wire.codes import ResponseCode


def test_a_queue_starts_once_and_later_starts_change_nothing() -> None:
    queue = AssignedQueue(QUEUE, ordered=True, needs_lock=False, settings=ClientSettings())
    assert not queue.is_started
    queue.start_at(7)
    queue.start_at(3)
    assert (queue.is_started, queue.next_offset) == (True, 7)


def test_ready_messages_are_counted_until_they_are_taken() -> None:
    queue = filled("a", "a", "", "")
    assert (queue.ready, queue.has_ready) == (3, True)
    queue.take_ready(2, NOW)
    assert queue.ready == 1


def test_tools_are_told_when_a_message_was_last_started_and_not_when_none_was() -> None:
    queue = assigned()
    queue.add_pulled([message(0), message(1, topic="u")], 2)
    queue.take_ready(1, NOW)
    assert queue.take_ready(1, NOW + 5, topic="t") == [], "the next message is of another topic"
    assert queue.taken_at == NOW
    queue.take_ready(1, NOW + 9)
    assert queue.taken_at == NOW + 9


def test_the_earliest_of_the_held_messages_that_remain_comes_due_first() -> None:
    queue = filled("a", "b", "c", "d")
    queue.take_ready(4, NOW)
    for offset, seconds in ((0, 1), (1, 9), (2, 2), (3, 3)):
        queue.postpone(offset, NOW + seconds, counts=True)
    queue.forget_below(1)
    assert queue.next_due() == NOW + 2
    queue.wake(NOW + 3)
    assert offsets(queue.take_ready(9, NOW + 3)) == [2, 3]


def test_a_message_that_is_ready_is_not_started_twice_when_earlier_ones_are_dropped() -> None:
    queue = filled("a", "a")
    queue.take_ready(1, NOW)
    queue.finish(0)
    queue.forget_below(1)
    assert offsets(queue.take_ready(9, NOW)) == [1]
    assert queue.take_ready(9, NOW) == []


def test_an_ordering_key_takes_no_memory_when_its_messages_are_finished() -> None:
    """A queue may see any number of keys in its life."""
    queue = assigned()

    def work_off(begin: int) -> None:
        for at in range(begin, begin + 500):
            queue.add_pulled([message(at, f"key {at}")], at + 1)
            queue.finish(queue.take_ready(1, NOW)[0].queue_offset)
            assert queue.commit_offset == at + 1

    tracemalloc.start()
    try:
        work_off(0)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        work_off(500)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000, "a key would keep some hundred bytes"


def test_a_queue_is_read_from_the_master_until_it_suggests_a_slave() -> None:
    world, group, assigned = reading()
    with_slave(group)
    world.answers[PULL] = says(ResponseCode.PULL_NOT_FOUND, ext(3))
    world.play(pull_once(group, assigned))
    assert [call.address for call in world.calls_of(PULL)] == ["a:10911"]
