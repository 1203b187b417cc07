"""Popped messages in one member: leases, handles, and what is acknowledged."""

import pytest

from reliable_mq.client.consuming.flow_budget import FlowBudget
from reliable_mq.client.consuming.popped_queue import PopLease, PoppedQueue
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.wire.pop_handle import PopHandle

QUEUE = MessageQueue("t", "a", 0)
NOW = 100.0


def lease(offset: int, *, expires: float = NOW + 60, popped_ms: int = 1) -> PopLease:
    message = ReceivedMessage(topic="t", body=b"x", queue=QUEUE, queue_offset=offset)
    handle = PopHandle(0, popped_ms, 60_000, 0, "0", "a", 0, offset)
    return PopLease(message, "t", handle, expires, expires - 30)


def popped(*leases: PopLease, budget: FlowBudget | None = None) -> tuple[PoppedQueue, list[int]]:
    acknowledged: list[int] = []
    queue = PoppedQueue(
        QUEUE,
        settings=ClientSettings(),
        acknowledge=lambda each: acknowledged.append(each.message.queue_offset),
        budget=budget,
    )
    queue.add_popped(leases)
    queue.invariants()
    return queue, acknowledged


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_a_message_is_acknowledged_when_it_is_finished_in_any_order() -> None:
    queue, acknowledged = popped(lease(7), lease(3), lease(5))

    assert offsets(queue.take_ready(3, NOW)) == [7, 3, 5]
    for offset in (5, 7):
        queue.finish(offset)
        queue.invariants()
    assert acknowledged == [5, 7]
    assert list(queue.leases) == [3]


def test_no_message_begins_after_its_lease_has_ended() -> None:
    queue, acknowledged = popped(lease(1, expires=NOW + 1), lease(2), lease(3, expires=NOW + 1))

    assert offsets(queue.take_ready(9, NOW + 1)) == [2]
    assert list(queue.leases) == [2]
    queue.invariants()
    assert acknowledged == []


def test_a_held_message_does_not_begin_after_its_lease_has_ended() -> None:
    queue, _ = popped(lease(1, expires=NOW + 5))
    queue.take_ready(1, NOW)
    queue.postpone(1, NOW + 3, counts=False)
    assert queue.held == 1
    queue.wake(NOW + 6)

    assert queue.take_ready(1, NOW + 6) == []
    assert (queue.held, queue.unfinished) == (0, 0)
    queue.invariants()


def test_a_message_that_comes_a_second_time_gets_the_newer_handle_and_one_handler() -> None:
    queue, _ = popped(lease(1, popped_ms=1))
    queue.take_ready(1, NOW)
    queue.add_popped([lease(1, popped_ms=2)])

    assert queue.take_ready(1, NOW) == []
    assert queue.leases[1].handle.popped_ms == 2
    queue.invariants()


@pytest.mark.parametrize("stage", ["ready", "running", "held"])
def test_a_dropped_message_leaves_nothing_behind(stage: str) -> None:
    budget = FlowBudget(1_000_000)
    queue, acknowledged = popped(lease(1), lease(2), budget=budget)
    if stage != "ready":
        queue.take_ready(1, NOW)
    if stage == "held":
        queue.postpone(1, NOW + 3, counts=True)
    queue.drop(1)
    queue.invariants()
    queue.drop(2)
    queue.invariants()

    assert (budget.held, queue.running, queue.held, queue.next_due()) == (0, 0, 0, None)
    assert acknowledged == []


def test_an_attempt_that_counts_is_shown_to_the_next_handler_call() -> None:
    queue, _ = popped(lease(1))
    queue.take_ready(1, NOW)
    queue.postpone(1, NOW, counts=True)
    queue.wake(NOW)

    (again,) = queue.take_ready(1, NOW)
    assert again.reconsume_times == 1
    assert queue.leases[1].message is again


def test_room_of_the_reader_is_told_when_a_message_ends_or_is_held() -> None:
    queue, _ = popped(lease(1), lease(2), lease(3))
    woken: list[str] = []
    queue.wake_reader = lambda: woken.append("woken")
    queue.take_ready(3, NOW)
    queue.finish(1)
    queue.postpone(2, NOW + 1, counts=False)
    queue.drop(3)

    assert len(woken) == 3


def test_a_lost_lease_is_found() -> None:
    queue, _ = popped(lease(1))
    del queue.leases[1]
    with pytest.raises(InvariantBroken, match="K13"):
        queue.invariants()
