"""Tells the system that this process is ready, and that it still works.

Two ways, each only if the environment asks for it:

- `RELIABLE_MQ_HEALTH_FILE`: a file that exists from the start of work to its end. Its time of
  modification is that of the last beat. A probe (Kubernetes, Docker) looks at it.
- `NOTIFY_SOCKET`: systemd's socket; it gets READY=1, WATCHDOG=1 and STOPPING=1.

Whoever beats must do it from the loop that does the work: a thread of its own would beat for ever.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.telemetry import application_events

log = limited_log(__name__)

HEALTH_FILE_VARIABLE = "RELIABLE_MQ_HEALTH_FILE"
NOTIFY_VARIABLE = "NOTIFY_SOCKET"
BEAT_SECONDS = 1.0
"""The least time between two beats that are told."""


def without_probes(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process for which another one beats."""
    probes = (HEALTH_FILE_VARIABLE, NOTIFY_VARIABLE)
    return {name: value for name, value in environment.items() if name not in probes}


class Heartbeat:
    """The heartbeat of one process.

    Invariant: the health file exists only between the first beat and `end`.

    Args:
        file: the health file; "": none.
        notify: systemd's socket; "": none.
    """

    def __init__(self, file: str | None = None, notify: str | None = None) -> None:
        given = os.environ
        self._file = given.get(HEALTH_FILE_VARIABLE, "") if file is None else file
        self._notify = given.get(NOTIFY_VARIABLE, "") if notify is None else notify
        self._told = -BEAT_SECONDS
        self._is_ready = False
        self._has_failed = False

    def beat(self) -> None:
        """Tell that the work goes on; the first beat tells that the process is ready."""
        if not (self._file or self._notify):
            return
        now = time.monotonic()
        if now - self._told < BEAT_SECONDS:
            return
        self._told = now
        self._send("WATCHDOG=1" if self._is_ready else "READY=1\nWATCHDOG=1")
        self._is_ready = True
        if self._file:
            try:
                Path(self._file).touch()
            except OSError as error:
                self._warn(f"{HEALTH_FILE_VARIABLE}={self._file}: {error.strerror}")

    def end(self) -> None:
        """Tell that the process is about to end; it is not ready any more."""
        self._send("STOPPING=1")
        if self._file and self._is_ready:
            with contextlib.suppress(OSError):
                Path(self._file).unlink(missing_ok=True)
        self._is_ready = False

    def _send(self, text: str) -> None:
        if not self._notify:
            return
        address = "\0" + self._notify[1:] if self._notify.startswith("@") else self._notify
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as given:
                given.sendto(text.encode(), address)
        except OSError as error:
            self._warn(f"{NOTIFY_VARIABLE}={self._notify}: {error.strerror or error}")

    def _warn(self, text: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            application_events.PROBES_UNANSWERED.log(log, problem=text)


class BeatingSignal:
    """A stop signal whose main thread beats whenever it waits; for loops that look and wait."""

    def __init__(self, stopped: StopSignal, heart: Heartbeat) -> None:
        self._stopped = stopped
        self._heart = heart

    def is_set(self) -> bool:
        """Return whether the process must stop."""
        return self._stopped.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait until the process must stop, at most `timeout` seconds; return whether it must."""
        if threading.current_thread() is threading.main_thread():
            self._heart.beat()
        return self._stopped.wait(timeout)
