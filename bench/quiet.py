"""How much of the machine others use, so that a round can wait for quiet and say how quiet it was.

Linux only; elsewhere nothing is waited for and the answer is 0.
"""

import os
import sys
import time
from collections.abc import Collection
from pathlib import Path

LOOK_SECONDS = 1.0
QUIET_PROCESSORS = 0.15
IDLE_LOOK_SECONDS = 0.4


def busy_seconds() -> float:
    """Return the processor time that all processes have used since the machine started."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    idle, waiting = int(fields[3]), int(fields[4])
    return (sum(map(int, fields[:8])) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def used_seconds(pids: Collection[int]) -> float:
    """Return the processor time that these processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return _mib_of(pid, "VmRSS:")


def own_mib(pid: int) -> float:
    """Return the resident memory of a process without the files that it has mapped."""
    return _mib_of(pid, "RssAnon:")


def _mib_of(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


class OthersLoad:
    """Measures from its making what others use beside `pids` and this process."""

    def __init__(self, pids: Collection[int]) -> None:
        self._pids = (*pids, os.getpid())
        self._begin = self._look()

    def _look(self) -> tuple[float, float]:
        if sys.platform != "linux":
            return 0.0, time.monotonic()
        return busy_seconds() - used_seconds(self._pids), time.monotonic()

    def processors(self) -> float:
        """Return how many processors others have used on average since then."""
        others, at = self._look()
        return max(0.0, others - self._begin[0]) / max(at - self._begin[1], 1e-3)


def wait_until_idle(pids: Collection[int], seconds_max: float) -> None:
    """Return when these processes rest, or after `seconds_max`.

    What a broker puts off until nobody sends (ours its index) must not fall into another's round.
    """
    deadline = time.monotonic() + seconds_max
    while sys.platform == "linux" and time.monotonic() < deadline:
        before = used_seconds(pids)
        time.sleep(IDLE_LOOK_SECONDS)
        if used_seconds(pids) - before <= IDLE_LOOK_SECONDS * QUIET_PROCESSORS:
            return


def wait_for_quiet(pids: Collection[int], seconds_max: float) -> None:
    """Return when others leave the machine alone, or after `seconds_max`."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        load = OthersLoad(pids)
        time.sleep(LOOK_SECONDS)
        if load.processors() <= QUIET_PROCESSORS:
            return
