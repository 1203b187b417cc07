"""Lives of a broker over a disk in memory, each of which ends at a change of the disk.

A life is everything that happens from the first start to the last stop, as the clients know it. It
dies before one of its changes, or in the middle of a write; then the next broker must keep every
promise. `make test` tries some changes, `make crash` tries each.
"""

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Protocol, TypeVar

import pytest
from tests.steps import last_steps

from reliable_mq.testing.memory_disk import MachineStopped, MemoryDisk

DEATHS = pytest.mark.parametrize("is_power_lost", [False, True], ids=["kill", "power loss"])
_TORN_MAX = 700
_DOWNTIMES_MS = (0, 300, 5_000)


class Life(Protocol):
    """One life, and what its clients know."""

    disk: MemoryDisk

    def run(self) -> None:
        """Live to the end."""
        ...

    def assert_kept(self, downtime_ms: int) -> object:
        """Open the store again after a time, and compare with what the clients know."""
        ...


L = TypeVar("L", bound=Life)


def whole(make: Callable[[MemoryDisk], L]) -> L:
    """Return a life that nobody ends, whose promises were kept."""
    life = make(MemoryDisk())
    life.run()
    return life


def some(operations: int, count: int) -> range:
    """Return the changes at which a life dies: so many at least, or every one if that is wanted."""
    return last_steps(operations, max(1, operations // count))


def deaths(
    make: Callable[[MemoryDisk], L], numbers: Iterable[int], seed: int, *, is_power_lost: bool
) -> Iterator[L]:
    """Yield lives that died, each at another change of the disk; it was kept what was promised.

    Args:
        make: makes a life over a disk.
        numbers: of the changes.
        seed: decides how a write is torn, and what a power loss takes.
        is_power_lost: whether what was not synced may be lost.
    """
    for number in numbers:
        random = Random(f"{seed} {number}")
        disk = MemoryDisk()
        disk.stop_before, disk.torn = number, random.choice((0, random.randint(1, _TORN_MAX)))
        life = make(disk)
        with pytest.raises(MachineStopped):
            life.run()
        if is_power_lost:
            disk.lose_power(random)
        else:
            disk.kill()
        try:
            life.assert_kept(random.choice(_DOWNTIMES_MS))
        except AssertionError as error:
            error.add_note(f"died at change {number} of the disk, seed {seed}")
            raise
        yield life
