"""The real commands `reliable-mq broker` and `reliable-mq namesrv`, as the fuzzer runs them.

Run as a program: sets a limit of descriptors and a shorter time for silent connections if it is
asked for, plants a flaw if it is asked for, and becomes the command.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from tests.waiting import Budget

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
        words = [sys.executable, "-m", "tests.fuzz.served_process"]
        words += [msgspec.json.encode(ways).decode(), *arguments]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                words, cwd=_ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.pid = self._process.pid

    def __enter__(self) -> "ServedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def places(self) -> dict[str, str]:
        """Wait until it is ready, and return its addresses by kind: "broker", "namesrv".

        Raises:
            Ended: when it does not start.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
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
        return self._log.read_text("utf-8", "replace")

    def stop(self) -> None:
        """End it cleanly.

        Raises:
            Ended: when it does not end, or with an error.
        """
        self.check()
        self._process.terminate()
        budget = Budget(_START_SECONDS)
        while True:
            try:
                code = self._process.wait(1.0)
                break
            except subprocess.TimeoutExpired:
                if not budget.is_left():
                    raise self.ended(f"it does not stop, {budget.missed()}") from None
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
