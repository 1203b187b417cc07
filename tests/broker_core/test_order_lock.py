"""Queue locks: one owner at a time, free again when the owner is gone."""

import pytest

from reliable_mq.broker_core.delivery import order_lock
from reliable_mq.broker_core.delivery.order_lock import OrderLocks
from reliable_mq.message import MessageQueue

GROUP = "payments"
ONE, TWO = MessageQueue("orders", "b", 0), MessageQueue("orders", "b", 1)


@pytest.fixture
def locks() -> OrderLocks:
    return OrderLocks(lifetime_ms=60_000)


def test_a_queue_that_is_held_is_given_to_nobody_else(locks: OrderLocks) -> None:
    assert locks.lock(GROUP, "a", [ONE], now_ms=0) == [ONE]
    assert locks.lock(GROUP, "b", [ONE, TWO], now_ms=59_999) == [TWO]
    assert locks.lock("other group", "b", [ONE], now_ms=0) == [ONE]


def test_a_lock_that_is_not_renewed_in_time_is_free(locks: OrderLocks) -> None:
    locks.lock(GROUP, "a", [ONE], now_ms=0)

    assert locks.lock(GROUP, "b", [ONE], now_ms=60_000) == [ONE]
    assert locks.lock(GROUP, "a", [ONE], now_ms=60_001) == []


def test_a_renewal_begins_the_life_of_a_lock_again(locks: OrderLocks) -> None:
    locks.lock(GROUP, "a", [ONE], now_ms=0)
    locks.lock(GROUP, "a", [ONE], now_ms=50_000)

    assert locks.lock(GROUP, "b", [ONE], now_ms=60_000) == []


def test_nobody_unlocks_for_another(locks: OrderLocks) -> None:
    locks.lock(GROUP, "a", [ONE], now_ms=0)

    locks.unlock(GROUP, "b", [ONE])
    assert locks.lock(GROUP, "b", [ONE], now_ms=1) == []
    locks.unlock(GROUP, "a", [ONE])
    assert locks.lock(GROUP, "b", [ONE], now_ms=1) == [ONE]


def test_a_lock_that_is_bound_to_a_connection_ends_with_it(locks: OrderLocks) -> None:
    locks.lock(GROUP, "a", [ONE], now_ms=0, connection=7)
    locks.lock(GROUP, "a", [TWO], now_ms=0)

    locks.disconnect(7)

    assert locks.lock(GROUP, "b", [ONE, TWO], now_ms=1) == [ONE]


def test_the_end_of_an_old_connection_frees_nothing_that_another_holds(locks: OrderLocks) -> None:
    locks.lock(GROUP, "a", [ONE], now_ms=0, connection=7)
    locks.lock(GROUP, "a", [ONE], now_ms=1, connection=8)
    locks.disconnect(7)
    assert locks.lock(GROUP, "b", [ONE], now_ms=2) == []

    locks.lock(GROUP, "b", [ONE], now_ms=99_999)
    locks.disconnect(8)
    assert locks.lock(GROUP, "c", [ONE], now_ms=100_000) == []
    locks.invariants()


def test_a_group_consumes_in_order_while_a_lock_of_it_lives(locks: OrderLocks) -> None:
    assert not locks.is_any_live(GROUP, 0)
    locks.lock(GROUP, "a", [ONE], now_ms=0)

    assert locks.is_any_live(GROUP, 59_999)
    assert not locks.is_any_live(GROUP, 60_000)
    assert not locks.is_any_live("other", 0)


def test_nothing_is_kept_of_locks_that_were_given_back(locks: OrderLocks) -> None:
    for now_ms in range(100):
        locks.lock(f"group {now_ms}", "a", [ONE, TWO], now_ms, connection=now_ms)
        locks.unlock(f"group {now_ms}", "a", [ONE, TWO])

    locks.invariants()
    assert not locks._locks
    assert not locks._bound


def test_invented_groups_take_no_more_locks_than_there_may_be(
    locks: OrderLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds a lock renews it; others get one when locks have ended."""
    monkeypatch.setattr(order_lock, "LOCKS_MAX", 10)
    locks.lock(GROUP, "a", [ONE], now_ms=0)

    given = [locks.lock(f"group-{number}", "b", [ONE, TWO], now_ms=1) for number in range(20)]

    assert sum(map(len, given)) == 9
    assert locks.lock(GROUP, "a", [ONE, TWO], now_ms=2) == [ONE]
    locks.invariants()
    locks.expire(60_001)
    assert locks.lock("group-19", "b", [ONE], now_ms=60_001) == [ONE]
    locks.invariants()
