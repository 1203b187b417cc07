"""Crash points: every step of a process that others could notice, and its death at one of them.

Receives the name of a point; hands on a process that is killed there, as by SIGKILL. A step is a
statement before it leaves and after it was answered, a commit, a round trip to Redis, a frame to or
from a broker, an acknowledgement, a mail, and whatever `crash_here` names. No list of them is
written down: they are what a run does (see `crash_watch`), so that a new step cannot be forgotten.

    RELIABLE_MQ_CRASH_LOG=steps.txt \\
        python -m reliable_mq.testing.crash_points reliable_mq.cli.main run shop:mq
    RELIABLE_MQ_CRASH_AT='redis: after claim#2' \\
        python -m reliable_mq.testing.crash_points reliable_mq.cli.main run shop:mq

The first writes down what steps there are, each as its name and the how-many-eth of its name it
was; the second dies at one of them. Start the application again and see whether all is well.
"""

import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Protocol

from reliable_mq.errors import ConfigurationError

AT = "RELIABLE_MQ_CRASH_AT"
LOG = "RELIABLE_MQ_CRASH_LOG"


def kill_this_process(_point: str) -> None:
    """Die as by `kill -9`: nothing is finished, flushed or closed."""
    os.kill(os.getpid(), signal.SIGKILL)


class CrashPoints:
    """Counts the steps of a process and ends it at one of them.

    Invariant: a step is in the log before it is taken; after the death none is taken any more.

    Args:
        at: the point to die at, "name" or "name#3" for the third step of that name; empty: none.
        log: a file to which every step is added; it survives the death.
        die: ends the life; a test within one process raises its own BaseException here, again at
            every later step.

    Raises:
        ConfigurationError: when the number in `at` is none from 1.
    """

    def __init__(
        self,
        at: str = "",
        *,
        log: Path | str | None = None,
        die: Callable[[str], None] = kill_this_process,
    ) -> None:
        self.at = parse_point(at) if at else None
        self.is_dead = False
        self._die = die
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._log = None
        if log is not None:
            self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many steps of each name were taken."""
        return self._counts

    def step(self, name: str) -> None:
        """Take a step, or die at it."""
        with self._lock:
            number = self._counts.get(name, 0) + 1
            if not self.is_dead:
                self._counts[name] = number
                if self._log is not None:
                    os.write(self._log, f"{name}#{number}\n".encode())
                self.is_dead = (name, number) == self.at
        if self.is_dead:
            self._die(name)


def parse_point(text: str) -> tuple[str, int]:
    """Return name and number of a point that is written "name" or "name#3".

    Raises:
        ConfigurationError: when the number is none from 1.
    """
    name, mark, number = text.rpartition("#")
    if not mark:
        return text, 1
    if not number.isdecimal() or number == "0":
        raise ConfigurationError(f"crash point {text!r}: the number after # counts from 1")
    return name, int(number)


class Steps(Protocol):
    """What takes steps."""

    def step(self, name: str) -> None:
        """Take a step, or die at it."""


_installed: Steps | None = None


def crash_here(name: str) -> None:
    """Be a crash point of that name; nothing happens where no crash points are installed."""
    if _installed is not None:
        _installed.step(name)


@contextmanager
def taking_steps(steps: Steps) -> Iterator[None]:
    """Let `crash_here` be a step of these while the block runs; other steps they see themselves."""
    global _installed  # noqa: PLW0603 - what `crash_here` asks
    before, _installed = _installed, steps
    try:
        yield
    finally:
        _installed = before


def install(points: CrashPoints) -> None:
    """Make what this process does from now on steps of `points`, until it ends.

    Call it before the application connects to anything.
    """
    global _installed  # noqa: PLW0603 - a process dies once
    # Imported late: who only names a point of his own needs neither SQLAlchemy nor Redis.
    from reliable_mq.testing.crash_watch import watch  # noqa: PLC0415

    watch(points.step)
    _installed = points


def install_from_environment() -> CrashPoints | None:
    """Install what `RELIABLE_MQ_CRASH_AT` and `RELIABLE_MQ_CRASH_LOG` say; None: they are not set.

    Raises:
        ConfigurationError: when the point cannot be read.
    """
    at, log = os.environ.get(AT, ""), os.environ.get(LOG, "")
    if not at and not log:
        return None
    points = CrashPoints(at, log=log or None)
    install(points)
    return points


def main() -> None:
    """Run a module as `python -m` would, with the crash points of the environment."""
    if len(sys.argv) < 2:
        raise SystemExit(f"usage: {AT}=POINT python -m {__spec__.name} MODULE [ARGUMENTS]")
    install_from_environment()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # The module that applications import is another one than `__main__`: it must be that one.
    import_module("reliable_mq.testing.crash_points").main()
