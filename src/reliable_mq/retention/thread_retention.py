"""The loop that runs retention, a small part of the time, until the caller's event is set."""

import logging
import time
from collections import Counter
from collections.abc import Callable

from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.retention.retention import Retention, RetentionCounts
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

PART = 0.03
"""The part of the time that removals take, while there are rows to remove."""
IDLE_SECONDS = 60.0
"""Seconds between two runs when there is nothing to remove."""
TOLD_SECONDS = 600.0
"""Seconds between two log lines while there are rows to remove."""


def run_forever(
    retention: Retention, stopped: StopSignal, clock: Callable[[], float] = time.time
) -> None:
    """Run retention until `stopped` is set."""
    faults = FaultLog(log, "retention")
    removed: Counter[str] = Counter()
    logged_at = time.monotonic()
    while not stopped.is_set():
        began = time.monotonic()
        try:
            counts = retention.run_once(clock())
        except Exception as error:  # noqa: BLE001 - told by the teller
            faults.log_fault(error)
            stopped.wait(IDLE_SECONDS)
            continue
        if faults.is_failing:
            faults.note_success()
        removed += Counter(counts.rows)
        if removed.total() and (not counts.is_full or time.monotonic() > logged_at + TOLD_SECONDS):
            rows = ", ".join(f"{number} {what}" for what, number in removed.items() if number)
            application_events.RETENTION_REMOVED.log(log, rows=rows)
            removed, logged_at = Counter(), time.monotonic()
        stopped.wait(pause_after(counts, time.monotonic() - began))


def pause_after(counts: RetentionCounts, took: float) -> float:
    """Return the seconds to wait after a run that took `took` seconds."""
    return took * (1 / PART - 1) if counts.is_full else IDLE_SECONDS
