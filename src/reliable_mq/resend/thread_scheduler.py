"""The loop that runs the resend scheduler, until the caller's event is set."""

import logging
import time
from collections.abc import Callable, Mapping

import msgspec

from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.resend.scheduler import ResendCounts, Scheduler
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

SUM_SECONDS_MIN, SUM_SECONDS_MAX = 1.0, 60.0
"""Seconds between two log lines that sum up the work: of a scheduler with little, with much."""
_TOLD = ("sent", "failed", "confirmed", "escalated")
"""Fields of `ResendCounts` that are logged: changes. A claim that only waits is no change."""
SOON_SECONDS = 0.05
"""Shortest wait of a scheduler when no stub is due, seconds."""


def run_forever(
    scheduler: Scheduler,
    stopped: StopSignal,
    *,
    interval: float,
    clock: Callable[[], float] = time.time,
) -> None:
    """Run the scheduler until `stopped` is set.

    While batches are full it runs again at once, else every `interval` seconds. It runs earlier if
    a stub becomes due earlier, such as one whose lease expires.
    """
    faults, sums = FaultLog(log, "resend"), SumLog(log)
    while not stopped.is_set():
        began = time.monotonic()
        try:
            counts = scheduler.run_once(clock())
        except Exception as error:  # noqa: BLE001 - told by the teller
            faults.log_fault(error)
            stopped.wait(interval)
            continue
        if faults.is_failing:
            faults.note_success()
        sums.add(counts, time.monotonic())
        ahead = None if scheduler.next_time is None else scheduler.next_time - clock()
        stopped.wait(pause_after(counts, time.monotonic() - began, interval, ahead))


class SumLog:
    """Logs the sums of many runs in one line. Each single run is a line of level DEBUG.

    What is done now and then is told at once. While there is always something, the time between two
    lines doubles, up to a minute.

    Invariant: two lines are at least `SUM_SECONDS_MIN` apart, and no counted change is lost.

    Args:
        log: the logger that gets the lines.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._sums = dict.fromkeys(_TOLD, 0)
        self._apart = SUM_SECONDS_MIN
        self._due: float | None = None  # when the next line may be written

    def add(self, counts: ResendCounts, now: float) -> None:
        """Add the counts of a run that ended at `now`, in seconds of a clock that never jumps."""
        if counts.claimed:
            application_events.RESEND_TURN.log(
                self._log, counts=_counted(msgspec.structs.asdict(counts))
            )
        for name in _TOLD:
            self._sums[name] += getattr(counts, name)
        if any(self._sums.values()) and (self._due is None or now >= self._due):
            application_events.RESEND_DONE.log(self._log, counts=_counted(self._sums))
            self._sums = dict.fromkeys(_TOLD, 0)
            has_rested = self._due is None or now > self._due + SUM_SECONDS_MAX
            self._apart = SUM_SECONDS_MIN if has_rested else min(2 * self._apart, SUM_SECONDS_MAX)
            self._due = now + self._apart


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items() if number)


def pause_after(
    counts: ResendCounts, took: float, interval: float, ahead: float | None = None
) -> float:
    """Return the seconds to wait after a run that took `took` seconds.

    `ahead`: seconds until the next stub is due. None: unknown.
    """
    if counts.is_full:
        # If the stubs only wait, checking them takes at most half of the time.
        return 0.0 if counts.sent or counts.confirmed else min(interval, took)
    # Stubs of one ordering key follow one another: a send may have made the next one due.
    if counts.sent:
        return min(interval, SOON_SECONDS)
    return interval if ahead is None else min(interval, max(ahead, SOON_SECONDS))
