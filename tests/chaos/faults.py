"""What goes wrong next: drawn from a seed.

Receives a generator; hands on faults, each with the time that passes before it and the time that
its victim is away.
"""

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple


class Fault(StrEnum):
    """What is done, and to whom."""

    WORKER = "worker killed"
    PRODUCER = "producer killed"
    SCHEDULER = "scheduler killed"
    BROKER = "broker killed"
    REDIS = "Redis killed, empty after its start"
    FLUSH = "Redis flushed"
    CONNECTIONS = "database connections cut"
    DATABASE = "database server killed"
    WORKER_STOPPED = "worker stopped for a while (SIGSTOP)"
    PRODUCER_STOPPED = "producer stopped for a while (SIGSTOP)"
    SCHEDULER_STOPPED = "scheduler stopped for a while (SIGSTOP)"
    BROKER_STOPPED = "broker stopped for a while (SIGSTOP)"
    REDIS_STOPPED = "Redis stopped for a while (SIGSTOP)"
    SLAVE = "slave killed"
    SLAVE_STOPPED = "slave stopped for a while (SIGSTOP)"


WEIGHTS = {
    Fault.WORKER: 8,
    Fault.PRODUCER: 5,
    Fault.SCHEDULER: 4,
    Fault.BROKER: 4,
    Fault.REDIS: 2,
    Fault.FLUSH: 2,
    Fault.CONNECTIONS: 3,
    Fault.DATABASE: 1,
    Fault.WORKER_STOPPED: 2,
    Fault.PRODUCER_STOPPED: 1,
    Fault.SCHEDULER_STOPPED: 1,
    Fault.BROKER_STOPPED: 1,
    Fault.REDIS_STOPPED: 1,
}
OF_SLAVE = {Fault.SLAVE: 4, Fault.SLAVE_STOPPED: 1}
"""With a slave these happen, too."""
STOPS = frozenset(fault for fault in Fault if fault.name.endswith("_STOPPED"))
PAUSE_SECONDS = (0.2, 2.5)
AWAY_SECONDS = (0.0, 1.5)
STOPPED_SECONDS = (20.0, 70.0)
"""Longer than every lease of the application, and than the time-outs of a client."""


class Planned(NamedTuple):
    """A fault. `victim`: which of several, a number below a hundred."""

    pause: float
    fault: Fault
    victim: int
    away: float


def plan(
    seed: int, pause: tuple[float, float] = PAUSE_SECONDS, *, has_slave: bool = False
) -> Iterator[Planned]:
    """Yield faults for ever, with pauses between these seconds; the same seed yields the same."""
    rng = random.Random(seed)
    weighted = {**WEIGHTS, **(OF_SLAVE if has_slave else {})}
    faults, weights = list(weighted), list(weighted.values())
    while True:
        wait = rng.uniform(*pause)
        fault = rng.choices(faults, weights)[0]
        yield Planned(
            pause=wait,
            fault=fault,
            victim=rng.randrange(100),
            away=rng.uniform(*(STOPPED_SECONDS if fault in STOPS else AWAY_SECONDS)),
        )
