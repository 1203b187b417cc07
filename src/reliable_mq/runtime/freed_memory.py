"""Large buffers without a system call for each: a process keeps some of the memory that it frees.

A broker has a new buffer of some hundred KiB for each large read, and frees it soon. By default the
C library gives such memory back to the system at once. The next buffer then costs a page fault for
each 4 KiB of it, which is more than the bytes themselves cost.
Source: glibc `mallopt(3)`. Its own adjustment leads to the same after a buffer of 4 MiB was freed.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_FROM_HEAP_MAX = 1024 * 1024  # bytes; larger buffers are mapped one by one
_KEPT_MAX = 8 * 1024 * 1024  # free bytes at the end of the heap


def keep_freed_memory() -> bool:
    """Keep freed memory for the next buffers; return whether the C library can do it.

    Up to 8 MiB stay at the end of the heap. So does what was freed before a block in use, however
    much it is: after a peak, a process may keep most of it.
    It is for this project's programs. An application decides about its own process.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # musl decides for itself
        return False
    kept = mallopt(_M_TRIM_THRESHOLD, _KEPT_MAX)
    return bool(kept and mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP_MAX))
