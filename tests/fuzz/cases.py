"""One case of the fuzzer, with its limits of time and memory, and what is told of a finding."""

import logging
import resource
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import FrameType

from tests.fuzz.targets import NO_CONNECTIONS, TARGETS, Bugs, Finding

SECONDS_MAX = 20.0
MEMORY_MAX = 64 * 1024 * 1024  # more than this no connection may take
_SHOWN = 400  # characters of an input
_ADDRESSES_MAX = 1024 * 1024 * 1024  # stops what would take the whole machine


class Hang(Exception):
    """A case took too long."""


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise Hang(f"longer than {SECONDS_MAX} s")


def _memory(name: str) -> int:
    """Return one of the kernel's figures on this process, in bytes; 0 where it tells none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


@contextmanager
def _limits(memory_max: int) -> Iterator[None]:
    """Allow one case so much time, and so much memory above what the process has.

    Only memory that is used counts: a file of the disk in memory may be large and empty.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, _too_long)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the highest figure begins anew
    before = _memory("VmRSS")
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + _ADDRESSES_MAX, hard))
    try:
        yield
        taken = _memory("VmHWM") - before
        if taken > memory_max:
            raise Finding(f"{taken} bytes of memory were taken")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def play(target: str, number: int) -> str:
    """Play one case; return what was found, empty when nothing was."""
    inputs: list[tuple[str, object]] = []
    bugs = Bugs()
    logger = logging.getLogger("reliable_mq")
    logger.addHandler(bugs)
    propagates, logger.propagate = logger.propagate, False
    try:
        memory_max = _ADDRESSES_MAX if target in NO_CONNECTIONS else MEMORY_MAX
        with _limits(memory_max):
            TARGETS[target][1](Random(f"{target}:{number}"), lambda *fed: inputs.append(fed))
        if bugs.lines:
            raise Finding(bugs.lines[0])  # noqa: TRY301 - told like all others
    except Exception:  # noqa: BLE001 - whatever it is, it is a finding
        shown = [f"  {name}: {str(value)[:_SHOWN]}" for name, value in inputs[-3:]]
        return "\n".join(
            (f"{target}:{number} found:", *shown, traceback.format_exc(limit=-6), *bugs.lines[:1])
        )
    finally:
        logger.removeHandler(bugs)
        logger.propagate = propagates
    return ""
