"""Syncs many files at once, by syncing the file systems that hold them.

A sync of each takes a millisecond or two: ten thousand consume queues would keep a disk, and who
waits for a configuration file, busy for half a minute. Linux only, from 5.8 on: older kernels do
not tell errors there.
"""

import ctypes
import os
import re
from collections.abc import Iterable

FILES_MIN = 64  # from so many on it costs less, though others' data may be among it

_libc = ctypes.CDLL(None, use_errno=True)
_release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
IS_SUPPORTED = hasattr(_libc, "syncfs") and _release >= (5, 8)


def sync_file_systems(descriptors: Iterable[int]) -> None:
    """Return when all is on the medium that was written to the file systems of these files.

    Raises:
        OSError: when something could not be written since the files were opened.
    """
    for descriptor in {os.fstat(number).st_dev: number for number in descriptors}.values():
        if _libc.syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
