"""Find the memory and the processors of this machine or container."""

import os
from collections.abc import Iterator
from pathlib import Path

_SYSTEM = Path("/")


def memory_bytes(root: Path = _SYSTEM) -> int:
    """Return the bytes that this process may use: the machine's, or its control group's limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _control_groups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text.isdigit():  # "max" means no limit
                limits.append(int(text))
    return min(limits)


def processors(root: Path = _SYSTEM) -> int:
    """Return how many processors this process may use. A fraction counts as a whole one."""
    affinity = getattr(os, "sched_getaffinity", None)
    counts = [len(affinity(0)) if affinity is not None else os.cpu_count() or 1]
    for folder in _control_groups(root):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            counts.append(max(1, -(-int(quota) // int(period))))
    return min(counts)


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of their parents."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        here = top / path.lstrip("/")
        yield from (folder for folder in (here, *here.parents) if folder.is_relative_to(top))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:  # the file does not exist here, or is not readable
        return ""
