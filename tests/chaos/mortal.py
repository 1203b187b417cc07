"""A process that dies at a random SQL statement: `python -m tests.chaos.mortal MODULE ARGUMENTS`.

It lives for a while, drawn around `CHAOS_LIFE_SECONDS`. Then one of the next statements or commits
kills it as by SIGKILL, before the statement leaves or after it was answered.
"""

import os
import random
import runpy
import sys
import time
from collections.abc import Callable

from reliable_mq.testing.crash_points import kill_this_process
from reliable_mq.testing.crash_watch import watch

LIFE_SECONDS = "CHAOS_LIFE_SECONDS"
STATEMENTS_MAX = 30
"""At one of so many statements after its time a process dies."""
_OTHERS = ("redis: ", "broker: ", "client: ", "file: ", "mail: ", "http: ")


def is_statement(step: str) -> bool:
    """Say whether a step of `crash_watch` is a statement or the end of a transaction."""
    return not step.startswith(_OTHERS)


class Life:
    """Takes steps, and dies at a statement when its time is over.

    Args:
        seconds: how long it lives on the mean.
        rng: draws how long it lives, and at which statement it dies.
        clock: monotonic seconds.
        die: ends it.
    """

    def __init__(
        self,
        seconds: float,
        rng: random.Random,
        *,
        clock: Callable[[], float] = time.monotonic,
        die: Callable[[str], None] = kill_this_process,
    ) -> None:
        self._clock, self._die = clock, die
        self._until = clock() + rng.expovariate(1 / seconds)
        self._left = rng.randrange(STATEMENTS_MAX)

    def step(self, name: str) -> None:
        """Take a step, or die at it."""
        if is_statement(name) and self._clock() >= self._until:
            self._left -= 1
            if self._left < 0:
                self._die(name)


def main() -> None:
    """Run a module as `python -m` would, until it dies."""
    watch(Life(float(os.environ[LIFE_SECONDS]), random.Random()).step)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
