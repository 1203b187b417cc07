"""The real commands `reliable-mq broker` and `reliable-mq namesrv`, as the fuzzer runs them.

They are forks of one process that has imported them. Run as a program: sets a limit of descriptors
and a shorter time for silent connections if it is asked for, plants a flaw if it is asked for, and
becomes the command.
"""

import atexit
import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
from tests.forked_programs import Programs
from tests.waiting import until

_START_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1
_ROOT = Path(__file__).parents[2]
_LOG_SHOWN = 3_000
_MIB = 1024 * 1024


class Ways(msgspec.Struct, frozen=True):
    """How a server is run.

    Args:
        flaw: the name of what is taken out, see `tests.fuzz.flaws`; "" for nothing.
        descriptors: how many it may have; 0 for as many as the system allows.
        idle_seconds: how long a connection may be silent, or a frame take; 0 for the usual time.
    """

    flaw: str = ""
    descriptors: int = 0
    idle_seconds: float = 0.0


@cache
def _programs() -> Programs:
    """Return what begins all servers of this process."""
    made = Programs(
        *("uvloop", "reliable_mq.cli.main", "reliable_mq.cli.broker", "reliable_mq.cli.namesrv"),
        "reliable_mq.runtime.broker_server",
    )
    atexit.register(made.__exit__, None, None, None)
    return made


class Ended(Exception):
    """A server is not there any more; says what it has logged."""


class ServedProcess:
    """A broker or a name server in a process of its own. A context manager.

    Args:
        arguments: of `reliable-mq`.
        ways: how it is run.
        log: the file that takes what it logs.
    """

    def __init__(self, arguments: Sequence[str], ways: Ways, log: Path) -> None:
        self._log = log
        self._before = log.read_text("utf-8", "replace") if log.exists() else ""
        self._said = log.with_suffix(".out")
        words = ["-m", "tests.fuzz.served_process", msgspec.json.encode(ways).decode(), *arguments]
        self._process = _programs().begin(words, self._said, log, cwd=_ROOT)
        self.pid = self._process.pid

    def __enter__(self) -> "ServedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def places(self) -> dict[str, str]:
        """Wait until it is ready, and return its addresses by kind: "broker", "namesrv".

        Raises:
            Ended: when it does not start.
        """
        until(lambda: "\n" in self._said.read_text() or self._process.poll() is not None)
        line = self._said.read_text().partition("\n")[0]
        if not line.startswith("ready "):
            self._process.wait()
            raise self.ended(f"it does not start: {line!r}")
        return dict(word.split("=", 1) for word in line.split()[1:3] if "=" in word)

    def check(self) -> None:
        """Raise `Ended` when the process is gone."""
        if self._process.poll() is not None:
            raise self.ended(f"the server ended with code {self._process.returncode}")

    def ended(self, what: str) -> Ended:
        """Return an error that shows the end of the log."""
        return Ended(f"{what}; it logged:\n{self.log_text()[-_LOG_SHOWN:]}")

    def log_text(self) -> str:
        """Return what it has logged."""
        return self._before + self._log.read_text("utf-8", "replace")

    def stop(self) -> None:
        """End it cleanly.

        Raises:
            Ended: when it does not end, or with an error.
        """
        self.check()
        self._process.terminate()
        try:
            code = self._process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired as late:
            raise self.ended(f"it does not stop: {late}") from None
        if code:
            raise self.ended(f"it stopped with code {code}")


def memory_of(pid: int) -> int:
    """Return how many bytes a process keeps in memory that are no file's; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def loop_nanoseconds(pid: int) -> int:
    """Return for how long the first thread of a process has worked: it runs the loop."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])
    except (OSError, IndexError):
        return 0


def waited_nanoseconds() -> int:
    """Return for how long this thread could have worked, and others had the processor."""
    return int(Path(f"/proc/{os.getpid()}/schedstat").read_text().split()[1])


def _end_with_parent() -> None:
    """Let the system end this process when the one that started it is gone."""
    with suppress(OSError, AttributeError):  # other systems do not know it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _become(words: Sequence[str]) -> None:
    _end_with_parent()
    ways = msgspec.json.decode(words[0], type=Ways)
    if ways.descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ways.descriptors, ways.descriptors))
    if ways.idle_seconds:
        from reliable_mq.runtime.listener import Listener

        Listener.__init__.__defaults__ = (ways.idle_seconds,)
    if ways.flaw:
        from tests.fuzz.flaws import FLAWS

        FLAWS[ways.flaw].plant()
    from reliable_mq.cli.main import run

    sys.argv = ["reliable-mq", *words[1:]]
    run()


if __name__ == "__main__":
    _become(sys.argv[1:])
