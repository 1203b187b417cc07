"""One case of the fuzzer, with its limits of time and memory, and what is told of a finding."""

import ctypes
import gc
import logging
import resource
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import FrameType

from tests.fuzz.played import Played
from tests.fuzz.targets import NO_CONNECTIONS, TARGETS, Bugs, Finding

SECONDS_MAX = 20.0  # of work: a case that takes more hangs; a machine that pauses is no hang
CPU_SECONDS_MAX = 10.0  # of work: a case is some dozen requests, or some hundred bytes
MEMORY_MAX = 64 * 1024 * 1024  # more than this no connection may take
_SHOWN = 400  # characters of an input
_ADDRESSES_MAX = 1024 * 1024 * 1024  # stops what would take the whole machine


class Unmeasured(Exception):
    """The system does not tell how much memory a process takes."""


class Hang(Exception):
    """A case took too long."""


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise Hang(f"more than {SECONDS_MAX} s of work")


def _memory(name: str) -> int:
    """Return one of the kernel's figures on this process, in bytes.

    Raises:
        Unmeasured: when it tells none.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError as error:
        raise Unmeasured(f"/proc/self/status: {error}") from error
    for line in lines:
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise Unmeasured(f"/proc/self/status has no {name}")


def _give_back() -> None:
    """Give back what the cases before have left, so that it cannot hide what the next one takes."""
    gc.collect()
    with suppress(OSError, AttributeError):  # a C library without it keeps little anyway
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _limits(played: Played, memory_max: int) -> Iterator[None]:
    """Allow one case so much time, and so much memory above what the process has.

    Only memory that is used counts: a file of the disk in memory may be large and empty.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    _give_back()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the highest figure begins anew
    except OSError as error:
        raise Unmeasured(f"/proc/self/clear_refs: {error}") from error
    before, began = _memory("VmRSS"), time.process_time()
    handler = signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS_MAX)
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + _ADDRESSES_MAX, hard))
    try:
        yield
        played.memory = _memory("VmHWM") - before
        played.seconds = time.process_time() - began
        if played.memory > memory_max:
            raise Finding(f"{played.memory} bytes of memory were taken")
        if played.seconds > CPU_SECONDS_MAX:
            raise Finding(f"{played.seconds:.1f} seconds of work")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


def play(target: str, number: int) -> Played:
    """Play one case and return what became of it.

    Raises:
        Unmeasured: when it cannot be said how much memory it took.
    """
    played = Played()
    inputs: list[tuple[str, object]] = []
    bugs = Bugs()
    logger = logging.getLogger("reliable_mq")
    logger.addHandler(bugs)
    propagates, logger.propagate = logger.propagate, False
    try:
        memory_max = _ADDRESSES_MAX if target in NO_CONNECTIONS else MEMORY_MAX
        with _limits(played, memory_max):
            TARGETS[target][1](Random(f"{target}:{number}"), lambda *fed: inputs.append(fed))
        if bugs.lines:
            raise Finding(bugs.lines[0])  # noqa: TRY301 - told like all others
    except Unmeasured:
        raise
    except Exception:  # noqa: BLE001 - whatever it is, it is a finding
        shown = [f"  {name}: {str(value)[:_SHOWN]}" for name, value in inputs[-3:]]
        lines = (f"{target}:{number} found:", *shown, traceback.format_exc(limit=-6))
        played.finding = "\n".join((*lines, *bugs.lines[:1]))
    finally:
        logger.removeHandler(bugs)
        logger.propagate = propagates
    return played
