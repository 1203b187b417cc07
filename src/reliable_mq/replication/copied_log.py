"""The bytes of a master's log as they arrive at a slave, and the records in them.

Receives transfers. Returns records that are whole and checked, and the blanks at the ends of
segments. A slave stores nothing else, so it never serves what it has not verified.

Invariant K7: the returned pieces are contiguous, and begin where the slave's log ends.
"""

from typing import NamedTuple

from reliable_mq.errors import InvariantBroken, ReplicationError
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.replication.ha_frames import Transfer
from reliable_mq.wire.record import BLANK_SIZE, blank_size_at
from reliable_mq.wire.record_scan import (
    AlikeHeads,
    Heads,
    claimed_size_at,
    heads_from,
    is_of_newer_version,
    rows_of,
)

_CLAIM_SIZE = 36  # bytes that show the claimed size of a record


class CopiedRun(NamedTuple):
    """Records of the master's log, one after another, as their bytes.

    Without `heads` it is the blank that ends a segment.
    """

    offset: int
    data: bytes
    heads: Heads

    @property
    def newest_ms(self) -> int:
        """When the last record was stored, in ms; 0 of a blank."""
        heads = self.heads
        if isinstance(heads, AlikeHeads):
            return heads.store_times_ms[-1]
        return heads[-1][5] if heads else 0


class CopiedLog:
    """Takes records out of transfers.

    Args:
        end: where the slave's log ends.
        segment_size: bytes of a segment of the slave's log. The master's must be the same.
    """

    def __init__(self, end: int, segment_size: int) -> None:
        self.end = end  # of the returned pieces
        self._segment_size = segment_size
        self._kept = bytearray()  # the begin of a record
        self._size_needed = 0  # bytes of the record that begins there, as far as it is known

    def invariants(self) -> None:
        """K7; between two calls of `take`."""
        if len(self._kept) >= FRAME_SIZE_MAX + self._segment_size:
            raise InvariantBroken(f"K7: {len(self._kept)} bytes without a record at {self.end}")
        if self._size_needed and len(self._kept) >= self._size_needed:
            raise InvariantBroken(f"K7: a whole record at {self.end} was not returned")

    @property
    def received(self) -> int:
        """The offset up to which bytes have arrived."""
        return self.end + len(self._kept)

    def take(self, transfer: Transfer) -> list[CopiedRun]:
        """Return the records that are whole with this transfer.

        Raises:
            ReplicationError: when the transfer does not continue the log, or its bytes are no
                records. Nothing of it was returned then.
        """
        if transfer.offset != self.received:
            raise ReplicationError(
                f"the master sent offset {transfer.offset}; this slave has received up to "
                f"{self.received}"
            )
        if not transfer.data:
            return []
        buffer = transfer.data
        if self._kept:
            if len(self._kept) + len(buffer) < self._size_needed:
                self._kept += buffer
                return []
            buffer = b"".join((self._kept, buffer))
        self._size_needed = 0
        found: list[CopiedRun] = []
        at = 0
        while at < len(buffer):
            run = self._run_at(buffer, at, self.end + at)
            if run is None:
                break
            found.append(run)
            at += len(run.data)
        self._kept = bytearray(memoryview(buffer)[at:])  # one copy, not two
        self.end += at
        return found

    def _run_at(self, buffer: bytes, at: int, offset: int) -> CopiedRun | None:
        """Return the whole records or the blank at a place; None: there are none."""
        rest = self._segment_size - offset % self._segment_size
        heads, end = heads_from(buffer, at, offset)
        if heads:
            if end - at + BLANK_SIZE > rest:
                raise ReplicationError(self._about_crossing(heads, offset, rest))
            return CopiedRun(offset, buffer[at:end], heads)
        left = len(buffer) - at
        view = memoryview(buffer)
        if blank := blank_size_at(view, at):
            if blank != rest:
                raise ReplicationError(
                    f"the master's segment ends at offset {offset + blank}, this slave's at "
                    f"{offset + rest}: {self._advice()}"
                )
            if left < blank:
                self._size_needed = blank
                return None
            return CopiedRun(offset, buffer[at : at + blank], ())
        self._expect_rest(view, at, offset, left)
        return None

    def _about_crossing(self, heads: Heads, offset: int, rest: int) -> str:
        """Return what to say of the record that does not fit into the slave's segment."""
        for size, *_others in rows_of(heads):
            if size + BLANK_SIZE > rest:
                break
            offset, rest = offset + size, rest - size
        return (
            f"a record of {size} bytes at offset {offset}; {rest} bytes are left in the "
            f"segment: {self._advice()}"
        )

    def _advice(self) -> str:
        return f"mappedFileSizeCommitLog differs; here it is {self._segment_size}"

    def _expect_rest(self, buffer: memoryview, at: int, offset: int, left: int) -> None:
        """Note the size of the record that begins there; raise if none does."""
        if left < _CLAIM_SIZE:
            return
        claimed = claimed_size_at(buffer, at, offset)
        if left < claimed <= FRAME_SIZE_MAX:
            self._size_needed = claimed
            return
        if is_of_newer_version(buffer, at, offset):
            raise ReplicationError(
                f"the master's log has a record of a newer version at offset {offset}: update the "
                "slave first"
            )
        raise ReplicationError(
            f"the master's log has no valid record at offset {offset}: it is damaged there, or "
            "something else answers at the master's address"
        )
