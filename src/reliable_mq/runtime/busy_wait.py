"""Whether to look again and again for an answer, instead of sleeping until somebody wakes us.

Waking who sleeps on a processor with nothing to do takes some 30 us on a virtual machine, as long
as all that a client does for a message. So whoever asks again and again, with one question at a
time, looks for a while first: as long as answers come that soon, and nobody else wants the
processor.
"""

import os
import time
from collections.abc import Callable

from reliable_mq.errors import InvariantBroken

AGAIN_SECONDS = 0.002
"""Who asked longer ago asks now and then, and sleeps."""
STOLEN_SECONDS = 0.0001
"""Who is kept from looking for so long was not alone on the processor."""
PAUSE_SECONDS = 0.002
PAUSE_SECONDS_MAX = 1.0
_SHRINKS = 0.95  # pauses grow when more than one look in fourteen is in vain: they double for each


class BusyWait:
    """Says so, for one who waits at a time: `begin`, then `goes_on` after each look, or `came`.

    Invariant: a pause is neither shorter nor longer than pauses may be.

    Args:
        seconds: how long to look for one answer; 0: never.
        clock: seconds, never going back.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began = -AGAIN_SECONDS
        self._looked = 0.0
        self._sleeps_until = 0.0
        self._pause = PAUSE_SECONDS

    def begin(self) -> bool:
        """Say whether to look for an answer that was asked for just now."""
        if not self._seconds:
            return False
        now = self._looked = self._clock()
        is_again = now - self._began < AGAIN_SECONDS
        self._began = now
        return is_again and now >= self._sleeps_until

    def goes_on(self) -> bool:
        """Say whether to look once more, after a look in vain."""
        before, now = self._looked, self._clock()
        self._looked = now
        if now - before <= STOLEN_SECONDS and now - self._began < self._seconds:
            return True
        self._sleeps_until = now + self._pause
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
        return False

    def came(self) -> None:
        """Note that the answer was there when it was looked for."""
        self._pause = max(self._pause * _SHRINKS, PAUSE_SECONDS)

    def invariants(self) -> None:
        """Hold the class's invariant."""
        if not PAUSE_SECONDS <= self._pause <= PAUSE_SECONDS_MAX:
            raise InvariantBroken(f"a busy wait pauses for {self._pause} s")


def worth_it(seconds: float) -> float:
    """Return how long to look: never, where the peer may need the only processor there is."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return seconds if count > 1 else 0.0
