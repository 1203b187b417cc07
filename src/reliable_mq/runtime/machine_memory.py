"""The memory of the machine, or of the container that this process runs in."""

import os
from pathlib import Path

_UNKNOWN = 10 * 1024**3
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def memory_of_machine() -> int:
    """Return its bytes; 10 GiB when the system does not say it."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return _UNKNOWN
    try:
        return min(whole, int(_CONTAINER.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # no container, or one without a limit: "max"
        return whole
