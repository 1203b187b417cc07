"""A forked process that tries one mutant: its limits, and what its end says."""

import contextlib
import os
import resource
import select
import signal
from collections.abc import Callable
from typing import Literal

Outcome = Literal["killed", "survived", "timed out"]
MEMORY_MAX = 6 << 30
"""Bytes of addresses: a mutant that reserves without end meets a MemoryError."""


def tried(survives: Callable[[], bool], cpu_seconds: float, wall_seconds: float) -> Outcome:
    """Run tests in a fork, and say what they made of the mutant.

    The limit is processor time, so that a busy machine kills no mutant. One that waits for ever
    uses none: it ends by the clock, later.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        _try(survives, cpu_seconds, writing)
    os.close(writing)
    ended, _, _ = select.select([reading], [], [], wall_seconds)
    said = os.read(reading, 1) if ended else b"late"
    os.close(reading)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if said == b"late" or (not said and os.WTERMSIG(status) == signal.SIGXCPU):
        return "timed out"
    return "survived" if said == b"s" else "killed"


def _try(survives: Callable[[], bool], cpu_seconds: float, writing: int) -> None:
    """Be the forked process; never return."""
    os.setpgid(0, 0)  # what the tests start dies with this process
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    limit = int(cpu_seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    said = b"k"
    try:
        said = b"s" if survives() else b"k"
    finally:
        os.write(writing, said)
        os._exit(0)
