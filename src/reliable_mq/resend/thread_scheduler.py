"""Runs the scheduler again and again. Receives an event that ends it."""

import logging
import time
from typing import Protocol

from reliable_mq.resend.scheduler import Scheduler

log = logging.getLogger(__name__)


class Stopped(Protocol):
    """What ends the scheduler; a `threading.Event` is one."""

    def is_set(self) -> bool:
        """Say whether it is to end."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait until it is to end, at most `timeout` seconds."""
        ...


def run_forever(scheduler: Scheduler, stopped: Stopped, *, interval: float, batch: int) -> None:
    """Run until `stopped`: at once again while batches are full, else every `interval` seconds."""
    while not stopped.is_set():
        try:
            counts = scheduler.run_once(time.time())
        except Exception:
            log.exception("resend cannot reach the database; it tries again")
            stopped.wait(interval)
            continue
        if counts.claimed:
            log.info("resend: %s", counts)
        if counts.sent + counts.confirmed + counts.escalated < batch:
            # Stubs of one ordering key follow one another: a send may have made the next one due.
            stopped.wait(interval if not counts.sent else min(interval, 0.05))
