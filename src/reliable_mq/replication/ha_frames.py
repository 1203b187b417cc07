"""The frames of a replication connection.

The slave sends reports: the offset up to which it has the log. The first one asks for the log from
there. The master sends transfers: an offset, a size, and so many bytes of the log from there. A
transfer without bytes is a heartbeat, and names the offset of the next transfer. Two heartbeats
with nothing between them are a hint: the master's tables have changed. Apache's slaves take them
for heartbeats.

Invariant W3: any split of the bytes gives the same reports and transfers.
Source: Apache RocketMQ `DefaultHAConnection`, `DefaultHAClient`.
"""

import struct
from typing import NamedTuple

from reliable_mq.errors import FrameError, InvariantBroken

TRANSFER_SIZE_MAX = 128 * 1024
"""The most bytes of the log in a transfer that is sent. Apache's masters send 32 KiB at once."""
RECEIVED_TRANSFER_SIZE_MAX = 4 * 1024 * 1024
"""The most bytes in a transfer that is read. Apache's slave has a buffer of this size."""
REPORT_SIZE = 8
"""Bytes of a report."""
HINT_BEATS = 2
"""So many heartbeats with nothing between them are a hint."""
_OFFSET_MAX = 1 << 56  # beyond all disks; the first bytes of text are more
_OFFSET = struct.Struct(">q")
_HEAD = struct.Struct(">qi")


class Transfer(NamedTuple):
    """Bytes of the master's log from `offset` on; without bytes: a heartbeat."""

    offset: int
    data: bytes


def encode_report(offset: int) -> bytes:
    """Return the report of a slave that has the log up to `offset`."""
    return _OFFSET.pack(offset)


def encode_transfer(offset: int, data: bytes) -> bytes:
    """Return a transfer of `data`, which is in the log from `offset` on."""
    return _HEAD.pack(offset, len(data)) + data


def encode_transfer_head(offset: int, size: int) -> bytes:
    """Return what stands before the `size` bytes of a transfer."""
    return _HEAD.pack(offset, size)


class ReportReader:
    """Reads the reports of one slave."""

    def __init__(self) -> None:
        self._kept = b""

    def invariants(self) -> None:
        """W3; between two calls of `feed`."""
        if len(self._kept) >= REPORT_SIZE:
            raise InvariantBroken("W3: a whole report was not returned")

    def feed(self, data: bytes) -> int | None:
        """Return the newest whole report; None: no report has ended in `data`.

        Raises:
            FrameError: when it is no offset of a log: the peer speaks something else.
        """
        data = self._kept + data
        rest = len(data) % REPORT_SIZE
        whole = len(data) - rest
        self._kept = data[whole:]
        if not whole:
            return None
        (offset,) = _OFFSET.unpack_from(data, whole - REPORT_SIZE)
        if not 0 <= offset < _OFFSET_MAX:
            raise FrameError(f"a report of offset {offset}, which no log has: it is no slave")
        return int(offset)


class TransferReader:
    """Reads the transfers of one master."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._size_needed = 0  # bytes of the transfer that begins there, as far as it is known

    def invariants(self) -> None:
        """W3; between two calls of `feed`."""
        kept = self._kept
        if len(kept) >= _HEAD.size and len(kept) >= _HEAD.size + _HEAD.unpack_from(kept)[1]:
            raise InvariantBroken("W3: a whole transfer was not returned")

    def feed(self, data: bytes) -> list[Transfer]:
        """Return the transfers that are whole with these bytes.

        Raises:
            FrameError: when the bytes are no transfers.
        """
        buffer = data
        if self._kept:
            if len(self._kept) + len(data) < self._size_needed:
                self._kept += data
                return []
            buffer = b"".join((self._kept, data))
        self._size_needed = 0
        found: list[Transfer] = []
        at = 0
        while len(buffer) - at >= _HEAD.size:
            offset, size = _HEAD.unpack_from(buffer, at)
            if offset < 0 or not 0 <= size <= RECEIVED_TRANSFER_SIZE_MAX:
                raise FrameError(
                    f"a transfer of {size} bytes at offset {offset}: no master sends it"
                )
            begin = at + _HEAD.size
            if begin + size > len(buffer):
                self._size_needed = _HEAD.size + size
                break
            found.append(Transfer(offset, buffer[begin : begin + size]))
            at = begin + size
        self._kept = bytearray(memoryview(buffer)[at:])  # one copy, not two
        return found
