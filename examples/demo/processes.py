"""The demo's own processes: started, killed and started again by pid, each with a log file.

Receives commands; hands on processes that run, are down for a while, or ended by themselves.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reliable_mq.errors import ReliableMQError

STOP_SECONDS_MAX = 15.0
LOG_TAIL_LINES = 12


class DemoFailed(ReliableMQError):
    """The demo cannot go on, or its outcome is wrong."""


class Process:
    """One process of the demo, which may be started many times.

    Invariant: at most one child lives; it was started by the last `start`.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], log_file: Path
    ) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.log_file = log_file
        self.kills = 0
        self._environment = dict(environment)
        self._child: subprocess.Popen[bytes] | None = None
        self._log_from = 0

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id of the child that the last `start` made, None when there is none."""
        return None if self._child is None else self._child.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of a child that ended by itself; negative for a signal; else None."""
        return None if self._child is None else self._child.poll()

    def start(self) -> None:
        """Start the process; its output is added to the log file."""
        with self.log_file.open("ab") as log:
            self._log_from = log.tell()
            self._child = subprocess.Popen(
                [sys.executable, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for the demo, which stops its processes in turn
            )

    def kill(self) -> None:
        """SIGKILL the process: it gets no chance to finish anything."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
            self.kills += 1

    def collect(self) -> int | None:
        """Return the exit code of a child that ended by itself and forget the child."""
        code = self.exit_code
        if code is not None:
            self._child = None
        return code

    def stop(self) -> None:
        """Ask the process to end and wait for it; does nothing when it does not run."""
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def wait_for_line(self, beginning: str, seconds_max: float) -> str:
        """Return the first line of this start's output that begins so.

        Raises:
            DemoFailed: when the process ends or the time passes before there is one.
        """
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline:
            is_running = self.is_running  # asked before the log is read: its last line counts
            for line in self._output().splitlines():
                if line.startswith(beginning):
                    return line
            if not is_running:
                break
            time.sleep(0.02)
        raise DemoFailed(f"{self.name} did not get ready\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the last lines of the log file under its name."""
        lines = self._output().splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"{self.log_file}:", *(f"  {line}" for line in lines)])

    def _output(self) -> str:
        with self.log_file.open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode(errors="replace")


def run_to_the_end(
    process: Process,
    seconds_max: float,
    exit_codes: Sequence[int] = (0,),
    while_waiting: Callable[[], None] = lambda: None,
) -> int:
    """Start a process, wait until it ends and return its exit code.

    Raises:
        DemoFailed: when it ends with another code than `exit_codes`, or not in time.
    """
    process.start()
    deadline = time.monotonic() + seconds_max
    while process.is_running and time.monotonic() < deadline:
        time.sleep(0.05)
        while_waiting()
    code = process.exit_code
    if code is None or code not in exit_codes:
        process.stop()
        ending = "did not end in time" if code is None else f"ended with {code}"
        raise DemoFailed(f"{process.name} {ending}\n{process.log_tail()}")
    return code
