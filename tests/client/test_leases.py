"""Leases on messages: who holds which delivery, and until when."""

import pytest

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.leases import Leases
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import InvariantBroken, LeaseLost
from reliable_mq.message import MessageQueue, ReceivedMessage

QUEUE = MessageQueue("t", "a", 0)
NOW = 100.0


def taken(count: int) -> tuple[AssignedQueue, list[ReceivedMessage]]:
    assigned = AssignedQueue(QUEUE, ordered=False, needs_lock=False, settings=ClientSettings())
    assigned.start_at(0)
    assigned.add_pulled(
        [
            ReceivedMessage(topic="t", body=b"x", queue=QUEUE, queue_offset=offset)
            for offset in range(count)
        ],
        count,
    )
    return assigned, assigned.take_ready(count, NOW)


def leased(count: int, *, seconds: float = 10.0) -> tuple[Leases, list[ReceivedMessage]]:
    leases = Leases()
    assigned, messages = taken(count)
    for message in messages:
        leases.begin_lease(assigned, message, NOW + seconds)
    leases.invariants()
    return leases, messages


def test_a_lease_runs_out_once_and_at_its_time() -> None:
    leases, messages = leased(2)
    assert leases.next_due() == NOW + 10
    assert leases.expired(NOW + 9.9) == []
    assert [lease.message for lease in leases.expired(NOW + 10)] == messages
    assert leases.expired(NOW + 20) == []
    assert leases.next_due() is None


def test_a_lease_that_ended_does_not_run_out_and_ends_only_once() -> None:
    leases, (first, second) = leased(2)
    assert leases.end(first).message is first
    with pytest.raises(LeaseLost, match=r"it was settled already \(ack, retry or reject\)"):
        leases.end(first)
    assert [lease.message for lease in leases.expired(NOW + 10)] == [second]
    with pytest.raises(LeaseLost):
        leases.end(second)


def test_who_comes_too_late_is_told_what_happened_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    longer = r"receive with a longer handling=, or call extend\(message, seconds\) before"
    leases, (first, second, third) = leased(3)
    leases.extend(second, NOW + 99)
    leases.end(third)
    leases.expired(NOW + 10)
    with pytest.raises(LeaseLost, match=r"its handling time is over, .*" + longer):
        leases.end(first)
    leases.forget(leases.find(second).assigned)
    with pytest.raises(LeaseLost, match="its queue has moved to another member"):
        leases.extend(second, NOW + 100)
    with pytest.raises(LeaseLost, match="it was settled already"):
        leases.extend(third, NOW + 100)
    with pytest.raises(LeaseLost, match="settle each message once, at the consumer that has"):
        Leases().end(first)
    monkeypatch.setattr("reliable_mq.client.consuming.leases._KEPT_MAX", 0)
    leases, (only,) = leased(1)
    leases.end(only)
    with pytest.raises(LeaseLost, match="it was settled long ago"):
        leases.end(only)


@pytest.mark.parametrize("until", [NOW + 5, NOW + 30])
def test_a_lease_that_was_changed_runs_out_at_its_new_time_only(until: float) -> None:
    leases, (message,) = leased(1)
    leases.extend(message, until)
    assert leases.next_due() in (NOW + 5, NOW + 30)
    assert leases.expired(until - 0.1) == []
    assert [lease.message for lease in leases.expired(until)] == [message]


def test_who_comes_too_late_does_not_end_the_lease_of_the_next_delivery() -> None:
    leases, (late,) = leased(1)
    (lease,) = leases.expired(NOW + 10)
    lease.assigned.postpone(0, NOW + 10, counts=True)
    lease.assigned.wake(NOW + 10)
    (again,) = lease.assigned.take_ready(1, NOW + 10)
    leases.begin_lease(lease.assigned, again, NOW + 20)
    with pytest.raises(LeaseLost):
        leases.end(late)
    with pytest.raises(LeaseLost):
        leases.extend(late, NOW + 99)
    assert leases.expired(NOW + 15) == []
    assert leases.end(again).message.reconsume_times == 1


def test_the_leases_of_a_queue_that_is_given_back_end_with_it() -> None:
    leases, (mine,) = leased(1)
    other, (kept,) = taken(1)
    other.queue = MessageQueue("t", "a", 1)
    kept = ReceivedMessage(topic="t", body=b"x", queue=other.queue, queue_offset=0)
    leases.begin_lease(other, kept, NOW + 10)
    (lease,) = [leases.end(mine)]
    leases.begin_lease(lease.assigned, mine, NOW + 10)
    leases.forget(lease.assigned)
    assert len(leases) == 1
    with pytest.raises(LeaseLost):
        leases.end(mine)
    assert leases.end(kept).message is kept


def test_a_lease_on_a_message_that_nobody_handles_is_a_bug() -> None:
    leases, (message,) = leased(1)
    lease = leases.end(message)
    leases.begin_lease(lease.assigned, message, NOW + 1)
    lease.assigned.finish(0)
    with pytest.raises(InvariantBroken, match="not running"):
        leases.invariants()
