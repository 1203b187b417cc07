"""The commit log: the only truth of a broker. Everything else can be built from it again.

The log is one sequence of records, cut into segments of one size, each a file named by the offset
of its first byte (20 digits). A record never spans two segments: when it does not fit, a blank of
eight bytes marks the rest of the segment as unused and the record begins the next one.

Appending is split so that one write and one sync serve many messages, off the event loop:
`append` gives a record its offset and keeps its bytes; `take_batch` hands out all that came since;
`write` and `sync` may run in another thread; `mark_written` and `mark_durable` come back.

Invariant S1: 0 <= start <= durable <= written <= end, and batches are contiguous.
Source: Apache RocketMQ `CommitLog`, `MappedFileQueue`.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from reliable_mq.broker_core.store.disk import Disk, DiskFile
from reliable_mq.errors import InvariantBroken, StoreCorrupt
from reliable_mq.wire.record import BLANK_SIZE, encode_blank

FOLDER = "commitlog"


class Write(NamedTuple):
    """Bytes for one segment: `parts` one after another from `at`."""

    segment: DiskFile
    at: int
    parts: list[bytes]


class Batch(NamedTuple):
    """What one turn appended, in log order; `end` is the log's end after it."""

    writes: list[Write]
    end: int


def segment_name(first_offset: int) -> str:
    """Return the file name of the segment that begins at `first_offset`."""
    return f"{first_offset:020d}"


class CommitLog:
    """The segments of one log, and how far each promise about them has come."""

    def __init__(self, disk: Disk, segment_size: int) -> None:
        self._disk = disk
        self._segment_size = segment_size
        self._firsts: list[int] = []
        self._segments: list[DiskFile] = []
        self._pending: list[Write] = []
        self.end = 0
        self.written = 0
        self.durable = 0
        self._load()

    def _load(self) -> None:
        """Open the segments that are there.

        Raises:
            StoreCorrupt: when a segment is missing in the middle or has another size.
        """
        for name in self._disk.names(FOLDER):
            if not (name.isdigit() and len(name) == 20):
                continue
            path = f"{FOLDER}/{name}"
            first = int(name)
            expected = self._firsts[-1] + self._segment_size if self._firsts else first
            if first != expected:
                raise StoreCorrupt(f"{path}: the segment that begins at {expected} is missing")
            size = self._disk.size_of(path)
            if size != self._segment_size:
                raise StoreCorrupt(
                    f"{path}: {size} bytes instead of {self._segment_size}; "
                    "set mappedFileSizeCommitLog as it was when the log was written"
                )
            self._firsts.append(first)
            self._segments.append(self._disk.open(path, self._segment_size))
        self.reset_end(self.start)

    @property
    def start(self) -> int:
        """The offset of the oldest byte that is kept."""
        return self._firsts[0] if self._firsts else 0

    @property
    def segment_size(self) -> int:
        """How many bytes one segment holds."""
        return self._segment_size

    @property
    def segment_starts(self) -> list[int]:
        """The first offset of every segment, oldest first."""
        return list(self._firsts)

    def reset_end(self, end: int) -> None:
        """Let the log end at `end`: recovery found nothing valid after it."""
        self.end = self.written = self.durable = end
        self.invariants()

    def invariants(self) -> None:
        """S1; see the module's head."""
        if not 0 <= self.start <= self.durable <= self.written <= self.end:
            raise InvariantBroken(
                f"S1: start {self.start}, durable {self.durable}, "
                f"written {self.written}, end {self.end}"
            )

    def append(self, size: int, encode: Callable[[int], bytes]) -> int:
        """Append one record and return its commit-log offset.

        Args:
            size: the record's size in bytes.
            encode: called with the offset, returns the `size` bytes to store.
        """
        offset = self._room_for(size)
        self._pending[-1].parts.append(encode(offset))
        self.end = offset + size
        return offset

    def _room_for(self, size: int) -> int:
        """Return the offset for `size` bytes; close the segment and open the next if need be."""
        at = self.end % self._segment_size
        is_new_segment = not self._firsts or self.end - self._firsts[-1] >= self._segment_size
        if not is_new_segment and size + BLANK_SIZE > self._segment_size - at:
            rest = self._segment_size - at
            self._pend(self.end)
            self._pending[-1].parts.append(encode_blank(rest))
            self.end += rest
            is_new_segment = True
        if is_new_segment:
            self._open_segment(self.end)
        if is_new_segment or not self._pending:
            self._pend(self.end)
        return self.end

    def _pend(self, offset: int) -> None:
        if not self._pending or self._pending[-1].segment is not self._segments[-1]:
            segment = self._segments[-1]
            self._pending.append(Write(segment, offset - self._firsts[-1], []))

    def _open_segment(self, first: int) -> None:
        path = f"{FOLDER}/{segment_name(first)}"
        self._segments.append(self._disk.open(path, self._segment_size))
        self._firsts.append(first)

    def take_batch(self) -> Batch | None:
        """Return what was appended since the last call, or None."""
        if not self._pending:
            return None
        batch = Batch(self._pending, self.end)
        self._pending = []
        return batch

    @staticmethod
    def write(batch: Batch) -> None:
        """Write the batch; batches must be written in the order in which they were taken."""
        for segment, at, parts in batch.writes:
            segment.write(at, parts)

    @staticmethod
    def sync(batch: Batch) -> None:
        """Return when the batch, and everything before it, is on the medium."""
        for segment, _at, _parts in batch.writes:
            segment.sync()

    def mark_written(self, end: int) -> None:
        """Note that all bytes before `end` were handed to the operating system."""
        self.written = max(self.written, end)
        self.invariants()

    def mark_durable(self, end: int) -> None:
        """Note that all bytes before `end` survive a crash, power loss included."""
        self.written = max(self.written, end)
        self.durable = max(self.durable, end)
        self.invariants()

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` written bytes at `offset`, fewer at the end of a segment.

        Bytes outside the kept log are empty.
        """
        at = bisect_right(self._firsts, offset) - 1
        if at < 0 or offset >= self.written:
            return b""
        return self._segments[at].read(offset - self._firsts[at], size)

    def segment_at(self, offset: int) -> tuple[int, DiskFile]:
        """Return (first offset, file) of the segment that holds `offset`.

        Raises:
            StoreCorrupt: when the log does not hold it.
        """
        at = bisect_right(self._firsts, offset) - 1
        if at < 0 or offset >= self._firsts[at] + self._segment_size:
            raise StoreCorrupt(f"{FOLDER}: no segment holds offset {offset}")
        return self._firsts[at], self._segments[at]

    def drop_segments_after(self, end: int) -> None:
        """Remove the segments that begin after `end`; recovery found them empty."""
        while self._firsts and self._firsts[-1] > end:
            self._segments.pop().close()
            self._disk.remove(f"{FOLDER}/{segment_name(self._firsts.pop())}")

    def sync_all(self) -> None:
        """Sync the newest segments; older ones were synced when they were left."""
        for segment in self._segments[-2:]:
            segment.sync()

    def close(self) -> None:
        """Let go of the files."""
        for segment in self._segments:
            segment.close()
