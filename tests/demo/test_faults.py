"""The plan of faults: from a seed, complete, and inside the traffic."""

import random
from collections import Counter

import pytest

from examples.demo.faults import (
    DOWN_SECONDS_MAX,
    FaultAction,
    FaultTarget,
    PlannedFault,
    orders_to_die_at,
    plan_faults,
)


def plan(seed: int, orders: int = 2_000, kills: int = 3) -> tuple[PlannedFault, ...]:
    return plan_faults(orders, kills, random.Random(seed))


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


@pytest.mark.parametrize("seed", range(20))
def test_every_plan_holds_every_kind_of_fault(seed: int) -> None:
    counted = Counter((fault.target.partition("-")[0], fault.action) for fault in plan(seed))

    assert counted == {
        ("broker", FaultAction.KILL): 3,
        ("worker", FaultAction.KILL): 3,
        ("producer", FaultAction.KILL_AFTER_COMMIT): 3,
        ("scheduler", FaultAction.KILL): 1,
        ("redis", FaultAction.STOP): 1,
        ("redis", FaultAction.FLUSH): 1,
    }


@pytest.mark.parametrize("orders", [50, 150, 2_000, 155_848])
def test_faults_come_in_order_and_fall_into_the_traffic(orders: int) -> None:
    faults = plan(3, orders)

    assert [fault.at_order for fault in faults] == sorted(fault.at_order for fault in faults)
    assert faults[0].at_order >= 1
    assert faults[-1].at_order < orders
    assert all(0 < fault.down_seconds <= DOWN_SECONDS_MAX for fault in faults)


def test_the_producer_dies_at_different_orders() -> None:
    deaths = orders_to_die_at(plan(11, orders=50))

    assert len(set(deaths)) == 3


def test_a_fault_says_what_it_does() -> None:
    assert str(PlannedFault(7, FaultTarget.BROKER, FaultAction.KILL, 1.25)) == (
        "order 7: broker SIGKILL, back after 1.2 s"
    )
    assert (
        str(PlannedFault(7, FaultTarget.REDIS, FaultAction.FLUSH, 1.25)) == "order 7: redis flushed"
    )
