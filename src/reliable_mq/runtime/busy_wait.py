"""Decides whether to poll for an answer (busy-wait) instead of sleeping until it arrives.

On a virtual machine, waking a thread on an idle processor takes about 30 us. That is as long as all
of a client's work for one message. So a caller that asks repeatedly, one question at a time, polls
for a short time first. It does so while answers arrive quickly and no other thread needs the
processor.
"""

import os
import time
from collections.abc import Callable

from reliable_mq.errors import InvariantBroken

AGAIN_SECONDS = 0.002
"""Maximum seconds between two questions. After a longer break, the caller sleeps."""
STOLEN_SECONDS = 0.0001
"""Maximum seconds between two polls. A longer gap means: others need the processor."""
PAUSE_SECONDS = 0.002
PAUSE_SECONDS_MAX = 1.0
_SHRINKS = 0.95  # pauses grow if more than 1 poll in 14 fails: a failure doubles them


class BusyWait:
    """Decides for one waiter: `begin`, then `should_continue` after each poll, or `note_answer`.

    Invariant: a pause is between `PAUSE_SECONDS` and `PAUSE_SECONDS_MAX`.

    Args:
        seconds: how long to poll for one answer; 0: never.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began = -AGAIN_SECONDS
        self._looked = 0.0
        self._sleeps_until = 0.0
        self._pause = PAUSE_SECONDS

    def begin(self) -> bool:
        """Return whether to poll for the answer to a question that was sent just now."""
        if not self._seconds:
            return False
        now = self._looked = self._clock()
        is_again = now - self._began < AGAIN_SECONDS
        self._began = now
        return is_again and now >= self._sleeps_until

    def should_continue(self) -> bool:
        """Return whether to poll once more, after a poll without an answer."""
        before, now = self._looked, self._clock()
        self._looked = now
        if now - before <= STOLEN_SECONDS and now - self._began < self._seconds:
            return True
        self._sleeps_until = now + self._pause
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
        return False

    def note_answer(self) -> None:
        """Note that a poll has found the answer."""
        self._pause = max(self._pause * _SHRINKS, PAUSE_SECONDS)

    def invariants(self) -> None:
        """Check the class's invariant."""
        if not PAUSE_SECONDS <= self._pause <= PAUSE_SECONDS_MAX:
            raise InvariantBroken(f"a busy wait pauses for {self._pause} s")


def poll_seconds(seconds: float) -> float:
    """Return `seconds`, or 0 when there is only one processor, which the peer may need."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return seconds if count > 1 else 0.0
