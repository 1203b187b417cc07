"""How far a synchronous master has acknowledged its log with SEND_OK.

    0 log offset    8 1 while the broker runs, else 0    16 the boot of the machine    all i64

It is written to the page cache before the acknowledgement leaves, so it survives the end of the
process. It is synced when the broker starts and when it stops. After a power loss it is not known
what was acknowledged; then all of the log counts as acknowledged. Other masters have no such file:
they acknowledge what is on their disk.
"""

import zlib

import msgspec

from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.field_file import FILE_SIZE, load_fields, save_fields

PATH = "config/acknowledged"


class _Fields(msgspec.Struct):
    offset: int = 0
    is_open: int = 0
    boot: int = 0


def acknowledged_until(disk: Disk, log_end: int) -> int:
    """Return the log offset up to which messages may have been acknowledged."""
    if disk.size_of(PATH) < 0:
        return log_end
    fields = load_fields(disk, PATH, _Fields)
    if fields.is_open and fields.boot != _boot(disk):
        return log_end
    return min(fields.offset, log_end)


def surely_acknowledged(disk: Disk) -> int:
    """Return the log offset up to which SEND_OK was said; -1: it is not known."""
    if disk.size_of(PATH) < 0:
        return -1
    fields = load_fields(disk, PATH, _Fields)
    return -1 if fields.is_open and fields.boot != _boot(disk) else fields.offset


def forget_acknowledged(disk: Disk) -> None:
    """Let all of the log count as acknowledged, durably."""
    if disk.size_of(PATH) >= 0:
        disk.remove(PATH)


class AcknowledgedFile:
    """The file of a synchronous master while it runs.

    Args:
        disk: the store's folder.
        log_end: where the log ends; what is before counts as acknowledged.
    """

    def __init__(self, disk: Disk, log_end: int) -> None:
        self._disk = disk
        self._offset = log_end
        self._fields = _Fields(log_end, 1, _boot(disk))
        save_fields(disk, PATH, self._fields)
        self._file = disk.open(PATH, FILE_SIZE)

    def note(self, offset: int) -> None:
        """Note that acknowledgements up to a log offset leave now."""
        if offset > self._offset:
            self._offset = offset
            self._file.write(0, (offset.to_bytes(8),))

    def close(self) -> None:
        """Sync the file: after this it counts also after a power loss."""
        self._file.close()
        save_fields(self._disk, PATH, _Fields(self._offset, 0, 0))


def _boot(disk: Disk) -> int:
    return zlib.crc32(disk.boot_id.encode()) if disk.boot_id else -1
