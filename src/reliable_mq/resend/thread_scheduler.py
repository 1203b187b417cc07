"""Runs the scheduler again and again. Receives an event that ends it."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from reliable_mq.resend.scheduler import ResendCounts, Scheduler
from reliable_mq.sql_faults import FaultTeller

log = logging.getLogger(__name__)

SOON_SECONDS = 0.05
"""Shortest wait of a scheduler that has nothing due."""


class Stopped(Protocol):
    """What ends the scheduler; a `threading.Event` is one."""

    def is_set(self) -> bool:
        """Say whether it is to end."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait until it is to end, at most `timeout` seconds."""
        ...


def run_forever(
    scheduler: Scheduler,
    stopped: Stopped,
    *,
    interval: float,
    clock: Callable[[], float] = time.time,
) -> None:
    """Run until `stopped`: at once again while batches are full, else every `interval` seconds.

    Earlier when a stub is known to become due earlier, such as one that another scheduler claimed
    and did not give back.
    """
    faults = FaultTeller(log, "resend")
    while not stopped.is_set():
        began = time.monotonic()
        try:
            counts = scheduler.run_once(clock())
        except Exception as error:  # noqa: BLE001 - told by the teller
            faults.tell(error)
            stopped.wait(interval)
            continue
        if counts.claimed:
            log.info("resend: %s", counts)
        ahead = None if scheduler.next_time is None else scheduler.next_time - clock()
        stopped.wait(pause_after(counts, time.monotonic() - began, interval, ahead))


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
