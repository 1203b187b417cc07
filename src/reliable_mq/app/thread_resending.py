"""Runs the resend schedulers of several databases side by side: none waits for another one."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.resend.thread_scheduler import Stopped, run_forever


class Resending(NamedTuple):
    """The scheduler of one database, and the clock by which its rows are judged."""

    database: str
    scheduler: Scheduler
    clock: Callable[[], float]


def resend_all(schedulers: Sequence[Resending], stopped: Stopped, interval: float) -> None:
    """Run them until `stopped`, the first in this thread, and return when all have ended."""
    first, *others = schedulers
    threads = [
        threading.Thread(
            target=run_forever,
            args=(each.scheduler, stopped),
            kwargs={"interval": interval, "clock": each.clock},
            name=f"reliable-mq-resend-{each.database}",
            daemon=True,
        )
        for each in others
    ]
    for thread in threads:
        thread.start()
    run_forever(first.scheduler, stopped, interval=interval, clock=first.clock)
    for thread in threads:
        thread.join()
