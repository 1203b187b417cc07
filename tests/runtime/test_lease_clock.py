"""The clock of leases goes on while the machine sleeps, and never goes back."""

import time

import pytest

from reliable_mq.runtime.lease_clock import LongerAdvance, lease_clock


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no such clock")
def test_the_kernels_clock_that_counts_suspensions_is_used_where_there_is_one() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = lease_clock()()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_elsewhere_a_suspension_is_told_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    steady, wall = Clock(50.0), Clock(1_800_000_000.0)
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(time, "monotonic", steady)
    monkeypatch.setattr(time, "time", wall)
    clock = lease_clock()
    begun = clock()
    steady.now, wall.now = 51.0, wall.now + 1.0
    assert clock() - begun == 1.0
    wall.now += 600.0  # asleep
    assert clock() - begun == 601.0


def test_a_wall_clock_that_is_set_back_holds_nothing_up() -> None:
    steady, wall = Clock(0.0), Clock(1000.0)
    clock = LongerAdvance(steady, wall)
    readings = []
    for seconds in (5.0, 1.0, -4000.0, 1.0):
        steady.now += 1.0
        wall.now += seconds
        readings.append(clock())
    assert readings == [5.0, 6.0, 7.0, 8.0]
