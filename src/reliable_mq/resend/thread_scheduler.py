"""Runs the scheduler again and again. Receives an event that ends it."""

import logging
import time
from collections.abc import Callable

from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.resend.scheduler import ResendCounts, Scheduler
from reliable_mq.runtime.stopped import StopSignal

log = logging.getLogger(__name__)

SUM_SECONDS = 60.0
"""What was done is told in one line, once in so many seconds."""
_TOLD = ("sent", "failed", "confirmed", "escalated")
"""Fields of `ResendCounts` that tell of a change; to claim a stub and let it rest is none."""
SOON_SECONDS = 0.05
"""Shortest wait of a scheduler that has nothing due."""


def run_forever(
    scheduler: Scheduler,
    stopped: StopSignal,
    *,
    interval: float,
    clock: Callable[[], float] = time.time,
) -> None:
    """Run until `stopped`: at once again while batches are full, else every `interval` seconds.

    Earlier when a stub is known to become due earlier, such as one that another scheduler claimed
    and did not give back.
    """
    faults, told = FaultLog(log, "resend"), SumLog(log)
    while not stopped.is_set():
        began = time.monotonic()
        try:
            counts = scheduler.run_once(clock())
        except Exception as error:  # noqa: BLE001 - told by the teller
            faults.tell(error)
            stopped.wait(interval)
            continue
        told.add(counts, time.monotonic())
        ahead = None if scheduler.next_time is None else scheduler.next_time - clock()
        stopped.wait(pause_after(counts, time.monotonic() - began, interval, ahead))


class SumLog:
    """Logs what many runs did in one line of words; each of them is a line of debugging.

    Invariant: no two lines within `SUM_SECONDS`; what a line leaves out the next one has.

    Args:
        log: where to.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._sums = dict.fromkeys(_TOLD, 0)
        self._due: float | None = None  # when the next line may be written

    def add(self, counts: ResendCounts, now: float) -> None:
        """Take in what a run did that ended at `now`, in seconds of a clock that never jumps."""
        if counts.claimed:
            self._log.debug("resend: %s", counts)
        for name in _TOLD:
            self._sums[name] += getattr(counts, name)
        if any(self._sums.values()) and (self._due is None or now >= self._due):
            parts = (f"{number} {name}" for name, number in self._sums.items() if number)
            self._log.info("resend: %s", ", ".join(parts))
            self._sums = dict.fromkeys(_TOLD, 0)
            self._due = now + SUM_SECONDS


def pause_after(
    counts: ResendCounts, took: float, interval: float, ahead: float | None = None
) -> float:
    """Return how long to wait after a run that took `took` seconds.

    `ahead`: in how many seconds the next stub is due, None when none is known.
    """
    if counts.is_full:
        # Looking at a backlog that only rests takes half of the time at most.
        return 0.0 if counts.sent or counts.confirmed else min(interval, took)
    # Stubs of one ordering key follow one another: a send may have made the next one due.
    if counts.sent:
        return min(interval, SOON_SECONDS)
    return interval if ahead is None else min(interval, max(ahead, SOON_SECONDS))
