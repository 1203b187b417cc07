"""The clock by which locks and leases age: it goes on while the machine sleeps.

Whoever granted a lock counts on while this machine is suspended, and may have given it to somebody
else when it wakes up. CLOCK_MONOTONIC, the clock of event loops, stands still meanwhile: by it the
lock would be as good as before.
"""

import os
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return what names the machine's current run; "" where the system does not tell."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def ticks_clock() -> Callable[[], float]:
    """Return a clock that nobody sets, in seconds since some moment; see `watched_time`.

    It counts a suspension where the kernel has such a clock. Elsewhere the time of one is not
    counted, so that what is watched by it becomes old later, and never earlier.
    """
    return _boot_time() or time.monotonic


@cache
def ticks_run() -> str:
    """Return what names the run that `ticks_clock` counts: of the machine, or of this process."""
    return (boot_id() if _boot_time() is not None else "") or os.urandom(8).hex()


def _boot_time() -> Callable[[], float] | None:
    number = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
    return None if number is None else partial(time.clock_gettime, number)


def lease_clock() -> Callable[[], float]:
    """Return a clock that never goes back and counts a suspension, in seconds since some moment."""
    return _boot_time() or LongerAdvance(time.monotonic, time.time)


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
