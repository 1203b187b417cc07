"""What will go wrong, and when: drawn from a seed before anything starts.

Receives the number of orders and a generator; hands on `PlannedFault` values. A fault is tied to
the number of orders placed, not to the clock, so that it falls into the traffic on any machine.
"""

import random
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

FIRST_ORDER, LAST_ORDER = 0.04, 0.96  # faults fall between these shares of the orders
DOWN_SECONDS_MIN, DOWN_SECONDS_MAX = 0.3, 1.5


class FaultTarget(StrEnum):
    """What a fault is done to."""

    BROKER = "broker"
    WORKER_1 = "worker-1"
    WORKER_2 = "worker-2"
    SCHEDULER = "scheduler"
    PRODUCER = "producer"
    REDIS = "redis"


class FaultAction(StrEnum):
    """What is done to it."""

    KILL = "SIGKILL"
    KILL_AFTER_COMMIT = "SIGKILL between commit and send"
    STOP = "stopped"
    FLUSH = "flushed"


class PlannedFault(NamedTuple):
    """At `at_order` orders placed, do `action` to `target`; it is back after `down_seconds`."""

    at_order: int
    target: FaultTarget
    action: FaultAction
    down_seconds: float

    def __str__(self) -> str:
        back = "" if self.action is FaultAction.FLUSH else f", back after {self.down_seconds:.1f} s"
        return f"order {self.at_order}: {self.target} {self.action}{back}"


def _deeds(kills: int, rng: random.Random) -> list[tuple[FaultTarget, FaultAction]]:
    workers = [rng.choice((FaultTarget.WORKER_1, FaultTarget.WORKER_2)) for _ in range(kills)]
    return [
        *[(FaultTarget.BROKER, FaultAction.KILL)] * kills,
        *[(worker, FaultAction.KILL) for worker in workers],
        *[(FaultTarget.PRODUCER, FaultAction.KILL_AFTER_COMMIT)] * kills,
        (FaultTarget.SCHEDULER, FaultAction.KILL),
        (FaultTarget.REDIS, FaultAction.STOP),
        (FaultTarget.REDIS, FaultAction.FLUSH),
    ]


def plan_faults(orders: int, kills: int, rng: random.Random) -> tuple[PlannedFault, ...]:
    """Return the faults of a run, in the order in which they will happen.

    Args:
        orders: how many orders the run places; at least three for each fault.
        kills: how often each of broker, workers and producer is killed.
        rng: the same generator state gives the same plan.
    """
    deeds = _deeds(kills, rng)
    rng.shuffle(deeds)
    # Each fault has a slot of the traffic to itself, and a place in it by chance: none is
    # crowded out, and yet two may fall close together.
    slot = orders * (LAST_ORDER - FIRST_ORDER) / len(deeds)
    return tuple(
        PlannedFault(
            at_order=max(1, int(orders * FIRST_ORDER + slot * (number + rng.random()))),
            target=target,
            action=action,
            down_seconds=rng.uniform(DOWN_SECONDS_MIN, DOWN_SECONDS_MAX),
        )
        for number, (target, action) in enumerate(deeds)
    )


def orders_to_die_at(faults: Iterable[PlannedFault]) -> list[int]:
    """Return the numbers of the orders after whose commit the producer kills itself."""
    return [fault.at_order for fault in faults if fault.action is FaultAction.KILL_AFTER_COMMIT]
