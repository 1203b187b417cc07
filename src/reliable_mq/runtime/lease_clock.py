"""Clocks for locks and leases: they advance while the machine is suspended.

The server that granted a lock keeps counting while this machine sleeps. When the machine wakes up,
another client may own the lock. CLOCK_MONOTONIC, the clock of event loops, does not advance during
a suspension, so a lock measured by it would seem valid.
"""

import os
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of the machine's current boot; "" where the system has none."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def ticks_clock() -> Callable[[], float]:
    """Return a clock that cannot be set, in seconds since an arbitrary moment; see `watched_time`.

    It includes suspensions where the kernel has such a clock. Elsewhere suspensions are missing,
    so a watched time may expire late, but never early.
    """
    return _boot_time() or time.monotonic


@cache
def ticks_run() -> str:
    """Return the id of what `ticks_clock` counts: the machine's boot, or this process."""
    return (boot_id() if _boot_time() is not None else "") or os.urandom(8).hex()


def _boot_time() -> Callable[[], float] | None:
    number = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
    return None if number is None else partial(time.clock_gettime, number)


def lease_clock() -> Callable[[], float]:
    """Return a monotonic clock that includes suspensions, in seconds since an arbitrary moment."""
    return _boot_time() or LongerAdvance(time.monotonic, time.time)


class LongerAdvance:
    """A clock that advances with the faster of two clocks since the last call.

    It is for systems where only the wall clock includes suspensions. If the wall clock is set back
    during a suspension, that time is lost. If it is set forward, leases expire early: the owner
    asks for them again, and nothing runs twice.

    Invariant: it never goes back, and is never slower than `steady`.

    Args:
        steady: a monotonic clock, in seconds.
        wall: a clock that advances during a suspension and can be set, in seconds.
    """

    def __init__(self, steady: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clocks = (steady, wall)
        self._last = (steady(), wall())
        self._now = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the time in seconds. Safe to call from any thread."""
        with self._lock:
            steady, wall = self._clocks[0](), self._clocks[1]()
            self._now += max(steady - self._last[0], wall - self._last[1], 0.0)
            self._last = (steady, wall)
            return self._now
