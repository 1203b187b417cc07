"""What a process and all that it starts use, looked at some times a second (Linux)."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LOOK_SECONDS = 0.1
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 1024**2
_TICKS = os.sysconf("SC_CLK_TCK")


class _Seen(NamedTuple):
    pid: int
    parent: int
    begin: int  # tells a process from a later one with its number
    ticks: int
    resident_mib: float
    is_java: bool


class Used(NamedTuple):
    """What a tree of processes used: MiB are the peak of the sum of what each held."""

    exit_code: int
    seconds: float
    cpu_seconds: float
    java_cpu_seconds: float
    peak_mib: float
    peak_java_mib: float
    peak_processes: int


def run_watched(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    beside: Callable[[], None] = lambda: None,
) -> Used:
    """Run a command to its end, its output in `log`; `beside` is called at every look.

    A shared page counts in every process that holds it, so the peak is rather too high. What a
    process does in its last tenth of a second is not seen.
    """
    ticks: dict[tuple[int, int], int] = {}
    java: set[tuple[int, int]] = set()
    peak_mib = peak_java_mib = 0.0
    peak_processes = 0
    began = time.perf_counter()
    with (
        log.open("wb") as output,
        subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        ) as child,
    ):
        while child.poll() is None:
            tree = _tree(child.pid)
            for each in tree:
                ticks[each.pid, each.begin] = each.ticks
                if each.is_java:
                    java.add((each.pid, each.begin))
            peak_mib = max(peak_mib, sum(each.resident_mib for each in tree))
            java_mib = sum(each.resident_mib for each in tree if each.is_java)
            peak_java_mib, peak_processes = (
                max(peak_java_mib, java_mib),
                max(peak_processes, len(tree)),
            )
            beside()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LOOK_SECONDS)
        code = child.returncode
    return Used(
        code,
        round(time.perf_counter() - began, 2),
        round(sum(ticks.values()) / _TICKS, 2),
        round(sum(count for key, count in ticks.items() if key in java) / _TICKS, 2),
        round(peak_mib),
        round(peak_java_mib),
        peak_processes,
    )


def cpu_seconds_so_far(root: int | None = None) -> float:
    """Return the processor time of a process (this one), of all below it, and of what has ended."""
    ticks = 0
    for each in _tree(root or os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # its own, and its ended children's
    return ticks / _TICKS


def _tree(root: int) -> list[_Seen]:
    """Return a process and its descendants."""
    seen = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # a process may end meanwhile
            name, _, rest = (folder / "stat").read_text().rpartition(")")
            fields = rest.split()
            pid = int(folder.name)
            seen[pid] = _Seen(
                pid,
                int(fields[1]),
                int(fields[19]),
                int(fields[11]) + int(fields[12]),
                int(fields[21]) * _PAGE_MIB,
                name.endswith("(java"),
            )

    def is_below(each: _Seen) -> bool:
        while each.pid != root:
            if each.parent not in seen:
                return False
            each = seen[each.parent]
        return True

    return [each for each in seen.values() if is_below(each)]
