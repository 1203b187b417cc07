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
    REDIS = "Redis killed, empty when it is back"
    FLUSH = "Redis flushed"
    CONNECTIONS = "database connections cut"
    DATABASE = "database server killed"


WEIGHTS = {
    Fault.WORKER: 8,
    Fault.PRODUCER: 5,
    Fault.SCHEDULER: 4,
    Fault.BROKER: 4,
    Fault.REDIS: 2,
    Fault.FLUSH: 2,
    Fault.CONNECTIONS: 3,
    Fault.DATABASE: 1,
}
PAUSE_SECONDS = (0.2, 2.5)
AWAY_SECONDS = (0.0, 1.5)


class Planned(NamedTuple):
    """A fault. `victim`: which of several, a number below a hundred."""

    pause: float
    fault: Fault
    victim: int
    away: float


def plan(seed: int, pause: tuple[float, float] = PAUSE_SECONDS) -> Iterator[Planned]:
    """Yield faults for ever, with pauses between these seconds; the same seed yields the same."""
    rng = random.Random(seed)
    faults, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        yield Planned(
            pause=rng.uniform(*pause),
            fault=rng.choices(faults, weights)[0],
            victim=rng.randrange(100),
            away=rng.uniform(*AWAY_SECONDS),
        )
