"""Child processes of a measurement: output in a file, an end that is waited for."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from reliable_mq.testing.local_servers import free_port

POLL_SECONDS = 0.02
LOG_TAIL_CHARACTERS = 2000


def port_beside(*distances: int) -> int:
    """Return a free port whose neighbours at these distances are free, too.

    Apache's broker also takes the second port below its own; a master of ours, and the next one.
    """
    while True:
        port = free_port()
        if all(map(_is_free, (port + distance for distance in distances))):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as place:
        try:
            place.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class ChildError(RuntimeError):
    """A child ended, or stayed silent, when it should not have. The text ends with its output."""


def end_by_input(child: subprocess.Popen[str] | subprocess.Popen[bytes], seconds: float) -> None:
    """Close the input of a child that ends with it; one that does not in time is killed."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def json_object(line: str) -> dict[str, Any]:
    """Return the object in a line of JSON."""
    value = json.loads(line)
    assert isinstance(value, dict)
    return value


class WarmChild:
    """A child that stays warm between rounds: it answers each line with one of JSON.

    A context manager. Its errors go to a file in `directory`.
    """

    def __init__(self, name: str, directory: Path, command: Sequence[str]) -> None:
        self._name = name
        directory.mkdir(parents=True, exist_ok=True)
        self._errors = (directory / f"{name}.stderr").open("w")
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    def round(self, **options: object) -> dict[str, Any]:
        """Run one round with these options over the ones of the command; its JSON line."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(" ".join(f"--{key} {value}" for key, value in options.items()))
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise ChildError(f"{self._name} ended; its errors are in {self._errors.name}")
        return json_object(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_by_input(self._child, 20)
        self._errors.close()


class LoggedProcess:
    """A child process whose output goes to a file.

    Invariant: the file holds everything this child wrote, and nothing of an earlier child.
    """

    def __init__(
        self, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("wb") as output:
            self.child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, timeout: float) -> re.Match[str]:
        """The first match of `pattern` in the output.

        Raises ChildError after `timeout` seconds, or when the child ends without it.
        """
        deadline = time.monotonic() + timeout
        while True:
            ended = self.child.poll() is not None
            if found := re.search(pattern, self.output(), re.MULTILINE):
                return found
            if ended or time.monotonic() > deadline:
                state = f"exit code {self.child.returncode}" if ended else f"{timeout:g} s"
                raise ChildError(
                    f"no {pattern!r} from {self.child.args!r} ({state}):\n"
                    + self.output()[-LOG_TAIL_CHARACTERS:]
                )
            time.sleep(POLL_SECONDS)

    def stop(self, timeout: float = 30) -> int:
        """SIGTERM, and the exit code. A child that does not end in time is killed; ChildError."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(timeout)
        except subprocess.TimeoutExpired as late:
            self.kill()
            raise ChildError(
                f"no end within {timeout:g} s of SIGTERM:\n" + self.output()[-LOG_TAIL_CHARACTERS:]
            ) from late

    def wait(self, timeout: float) -> int:
        """Return the exit code of a child that ends by itself; ChildError when it does not."""
        try:
            return self.child.wait(timeout)
        except subprocess.TimeoutExpired as late:
            self.kill()
            raise ChildError(f"{self.child.args!r}: no end within {timeout:g} s") from late

    def kill(self) -> None:
        """SIGKILL, and the wait for the end."""
        self.child.kill()
        self.child.wait()

    def pause(self) -> None:
        """SIGSTOP: its connections stay, and nobody answers."""
        self.child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.child.send_signal(signal.SIGCONT)

    @property
    def alive(self) -> bool:
        return self.child.poll() is None
