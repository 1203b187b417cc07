"""A process that fires a tick for each minute of a clock that runs fast, until it is killed.

`python -m tests.periodic.mortal URL BEGIN SPEED`: its clock showed BEGIN at the epoch BEGIN, and
runs SPEED times as fast since.
"""

import sys
import threading
import time
from datetime import timedelta

from tests.periodic.schedulers import SchedulerLife, declared

from reliable_mq import Tick
from reliable_mq.periodic.thread_periodic import fire_forever


def minutely(tick: Tick) -> str:
    """Return which tick it is."""
    return str(int(tick.time.timestamp()) // 60)


MESSAGE = declared(minutely, "* * * * *", catch_up=timedelta(days=1))


def main(url: str, begin: float, speed: float) -> None:
    """Fire ticks until somebody kills this process."""
    life = SchedulerLife(url, MESSAGE)
    fire_forever(
        life.sender,
        threading.Event(),
        interval=0.02,
        clock=lambda: begin + (time.time() - begin) * speed,
    )


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
