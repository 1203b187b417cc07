"""The clock by which locks and leases age: it goes on while the machine sleeps.

Whoever granted a lock counts on while this machine is suspended, and may have given it to somebody
else when it wakes up. CLOCK_MONOTONIC, the clock of event loops, stands still meanwhile: by it the
lock would be as good as before.
"""

import threading
import time
from collections.abc import Callable
from functools import partial


def lease_clock() -> Callable[[], float]:
    """Return a clock that never goes back and counts a suspension, in seconds since some moment."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
    if boot_time is not None:
        return partial(time.clock_gettime, boot_time)
    return LongerAdvance(time.monotonic, time.time)


class LongerAdvance:
    """Advances as the one of two clocks that has advanced more since the last look.

    Where no clock counts a suspension the wall clock does, if nobody sets it back meanwhile. One
    that is set forward ages leases too early: they are asked for again, and nothing runs twice.

    Invariant: it never goes back, and no slower than `steady`.

    Args:
        steady: seconds of a clock that never goes back.
        wall: seconds of a clock that goes on during a suspension, and may be set.
    """

    def __init__(self, steady: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clocks = (steady, wall)
        self._last = (steady(), wall())
        self._now = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the time; any thread may ask."""
        with self._lock:
            steady, wall = self._clocks[0](), self._clocks[1]()
            self._now += max(steady - self._last[0], wall - self._last[1], 0.0)
            self._last = (steady, wall)
            return self._now
