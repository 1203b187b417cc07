"""Stops the processes of `reliable-mq dev` if `dev` itself is killed.

The guard is a process of its own, in a session of its own. Its standard input is a pipe from `dev`.
It reads "SIGNAL PID" when a process has started, and "0 PID" when it has ended. When `dev` ends,
however it ends, the system closes the pipe. The guard then stops what still runs.

The children cannot watch such a pipe themselves: PostgreSQL, Valkey and a user's commands are among
them. A signal at the parent's death (`PR_SET_PDEATHSIG`) exists only on Linux.

This file is run as a script, without our package, so that it starts at once and takes little.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

STOP_SECONDS_MAX = 15.0
"""After this time, a process that was asked to end is killed with all that it started."""
POLL_SECONDS = 0.05


class DevGuard:
    """The side of `dev`; at the end of the block, the guard ends, too.

    Invariant: it knows of each process that was added and not removed.

    Args:
        held: descriptors that stay open until it has ended, such as that of a lock.
    """

    def __init__(self, *held: int) -> None:
        self._guard = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=held,
        )

    def add(self, pid: int, stop_signal: signal.Signals = signal.SIGTERM) -> None:
        """Guard a process, which leads a process group; `stop_signal` asks it to end."""
        self._tell(f"{int(stop_signal)} {pid}\n")

    def remove(self, pid: int) -> None:
        """Do not guard this process any more: it has ended."""
        self._tell(f"0 {pid}\n")

    def _tell(self, line: str) -> None:
        assert self._guard.stdin is not None  # noqa: S101 - for type checkers
        with contextlib.suppress(OSError):  # somebody has killed the guard
            self._guard.stdin.write(line.encode())
            self._guard.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._guard.stdin is not None  # noqa: S101 - for type checkers
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        if kind is None or not issubclass(kind, KeyboardInterrupt):  # a second Ctrl-C does not wait
            self._guard.wait()


def guard(lines: Iterable[str]) -> None:
    """Note the processes in the lines; when there are no more lines, stop those that still run."""
    running: dict[int, int] = {}
    for line in lines:
        number, pid = map(int, line.split())
        running[pid] = number
        if not number:
            del running[pid]
    for pid, number in running.items():
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while any(map(_lives, running)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for pid in running:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    guard(sys.stdin)
