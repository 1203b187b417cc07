"""A process of `reliable-mq dev`, in a session of its own, so that Ctrl-C reaches only `dev`."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from signal import Signals

from reliable_mq.cli.dev_guard import STOP_SECONDS_MAX, DevGuard
from reliable_mq.cli.dev_log import DevLog
from reliable_mq.errors import ReliableMQError

READY_SECONDS_MAX = 30.0


def end_of(code: int) -> str:
    """Return how a process ended, in words, by its exit code."""
    known = {int(each): each.name for each in Signals}
    return f"was killed by {known[-code]}" if -code in known else f"has ended with code {code}"


class DevFailed(ReliableMQError):
    """A process that `dev` needs did not start, or has ended."""


class DevProcess:
    """One process, whose output goes to the log.

    Invariant: after `stop`, no process of its group lives.

    Args:
        name: the name before its lines.
        words: the command.
        environment: its variables.
        log: gets its lines.
        guard: stops it if `dev` is killed.
        mark: lines of its standard output that begin with it are for us, and not for the log.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        log: DevLog,
        guard: DevGuard,
        mark: str = "",
    ) -> None:
        self.name = name
        self.words = words
        self.marked_lines: list[str] = []
        self._guard = guard
        self._mark = mark
        self._first_line = ""
        self._has_line = threading.Event()
        self._child = subprocess.Popen(  # noqa: S603 - a list of words of the developer
            list(words),
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        guard.add(self._child.pid)
        assert self._child.stdout is not None  # noqa: S101 - for type checkers
        assert self._child.stderr is not None  # noqa: S101 - for type checkers
        self._copies = [
            log.copy_stream(name, self._child.stderr, lambda _: True),
            log.copy_stream(name, self._child.stdout, self._note),
        ]

    def _note(self, line: str) -> bool:
        if not self._has_line.is_set():
            self._first_line = line
            self._has_line.set()
        if self._mark and line.startswith(self._mark):
            self.marked_lines.append(line.removeprefix(self._mark))
            return False
        return True

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._child.poll()

    def wait_for_first_line(self) -> str:
        """Return the first line that it prints.

        Raises:
            DevFailed: it ended before, or printed nothing in time.
        """
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._has_line.wait(0.1):
            if self.exit_code is not None or time.monotonic() > deadline:
                raise DevFailed(f"{self.name} did not start; its lines above say why")
        return self._first_line

    def wait(self, stopped: threading.Event, meanwhile: Callable[[], None] | None = None) -> int:
        """Wait for its end, or stop it when `stopped` is set; return its exit code.

        Args:
            stopped: ends the wait.
            meanwhile: called again and again; what it raises stops the process. Default: nothing.
        """
        try:
            while self.exit_code is None and not stopped.wait(0.05):
                if meanwhile is not None:
                    meanwhile()
        finally:
            self.stop()
        return self._child.wait()

    def begin_stop(self) -> None:
        """Ask it to end."""
        if self.exit_code is None:
            self._child.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask it to end, and wait; after `STOP_SECONDS_MAX`, kill it with all that it started."""
        self.begin_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_SECONDS_MAX)
        self.kill()
        for copy in self._copies:
            copy.join(1.0)

    def kill(self) -> None:
        """Kill what is left of its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._guard.remove(self._child.pid)
