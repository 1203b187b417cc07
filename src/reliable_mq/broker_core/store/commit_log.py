"""The commit log: the only truth of a broker. Everything else can be rebuilt from it.

The log is one sequence of records, in segments of equal size. Each segment is a file that is named
by the offset of its first byte (20 digits). A record never spans two segments. If it does not fit,
a blank of eight bytes marks the rest of the segment as unused, and the record begins the next one.

Appending has several steps, so that one write and one sync serve many messages, outside the event
loop. `room_for` assigns an offset to a record and `add` keeps its bytes. `take_batch` returns all
new records. `write_batch` and `sync` may run in another thread. `mark_written` and
`mark_durable` report the result.

Invariant S1: 0 <= start <= durable <= written <= end, and batches are contiguous.
Source: Apache RocketMQ `CommitLog`, `MappedFileQueue`.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from reliable_mq.broker_core.store.damage import STRETCHES_MAX, KnownDamage
from reliable_mq.broker_core.store.disk import Disk, DiskFile
from reliable_mq.errors import InvariantBroken, StoreCorrupt
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.long_frame import PIECE_SIZE
from reliable_mq.wire.record import BLANK_SIZE, encode_blank

log = logging.getLogger(__name__)

FOLDER = "commitlog"

_PAGE = 4096  # segment sizes are normally a multiple of it
_GAP = 16 * 1024  # reading such a gap is cheaper than a second read


class SegmentWrite(msgspec.Struct, gc=False):
    """Bytes for one segment: the `parts`, one after another, from position `at`."""

    segment: DiskFile
    at: int
    parts: list[bytes]


class LogBatch(msgspec.Struct, gc=False):
    """The records that one turn appended, in log order; `end` is the log's end after them."""

    writes: list[SegmentWrite]
    end: int


def segment_path(first_offset: int) -> str:
    """Return the path of the segment that begins at `first_offset`."""
    return f"{FOLDER}/{first_offset:020d}"


class CommitLog:
    """The segments of one log, and the offsets up to which it is written and durable."""

    def __init__(self, disk: Disk, segment_size: int) -> None:
        """Open the existing segments; nothing is changed.

        Raises:
            StoreCorrupt: when a middle segment is missing, or a segment has a wrong size.
        """
        self._disk = disk
        self._segment_size = segment_size
        self._firsts: list[int] = []
        self._segments: list[DiskFile] = []
        self._spare: tuple[int, DiskFile] | None = None
        self.pending: list[SegmentWrite] = []  # the records since the last `take_batch`
        self._is_read_ahead = True
        self._room = 0  # size of the room that `room_for` returned last
        self.capacity_end = 0  # end of the newest segment
        self.damage = KnownDamage()
        self._load()

    def _load(self) -> None:
        names = [name for name in self._disk.names(FOLDER) if name.isdecimal() and len(name) == 20]
        if names and self._disk.size_of(segment_path(int(names[-1]))) == 0:
            names.pop()  # the process died while it created this file
        for name in names:
            path, first = f"{FOLDER}/{name}", int(name)
            expected = self._firsts[-1] + self._segment_size if self._firsts else first
            size = self._disk.size_of(path)
            if size != self._segment_size:
                raise StoreCorrupt(
                    f"{path}: {size} bytes instead of {self._segment_size}; "
                    f"{self._advice_on_size(size, names)}"
                )
            if first != expected:
                raise StoreCorrupt(
                    f"{segment_path(expected)}: this segment is missing, but later ones exist; "
                    "restore it from a copy"
                )
            self._keep(first, self._disk.open(path, self._segment_size))
        self.reset_end(self.start)

    def _advice_on_size(self, size: int, names: list[str]) -> str:
        """Return advice for a segment whose size is not the configured one."""
        others = (self._disk.size_of(f"{FOLDER}/{name}") for name in names)
        is_cut = size % _PAGE or self._segment_size in others
        if size < self._segment_size and is_cut:
            return "the file is cut short; restore it from a copy"
        return "set mappedFileSizeCommitLog to its value when the log was written"

    def _keep(self, first: int, segment: DiskFile) -> None:
        self._firsts.append(first)
        self._segments.append(segment)
        if not self._is_read_ahead:
            segment.read_ahead(is_wanted=False)
        self.capacity_end = first + self._segment_size

    def read_ahead(self, *, is_wanted: bool) -> None:
        """Set whether the operating system reads ahead in all segments; on by default."""
        if is_wanted != self._is_read_ahead:
            self._is_read_ahead = is_wanted
            for segment in self._segments:
                segment.read_ahead(is_wanted=is_wanted)

    @property
    def start(self) -> int:
        """The offset of the oldest byte of the log."""
        return self._firsts[0] if self._firsts else 0

    @property
    def segment_size(self) -> int:
        """Bytes of one segment."""
        return self._segment_size

    @property
    def segment_starts(self) -> list[int]:
        """The first offset of every segment, oldest first."""
        return list(self._firsts)

    def reset_end(self, end: int) -> None:
        """Set the end of the log: recovery found nothing valid after it."""
        self.end = self.written = self.durable = end
        self.invariants()

    def invariants(self) -> None:
        """S1; see the head of the module."""
        if not 0 <= self.start <= self.durable <= self.written <= self.end:
            raise InvariantBroken(
                f"S1: start {self.start}, durable {self.durable}, "
                f"written {self.written}, end {self.end}"
            )

    def has_room_for(self, size: int) -> bool:
        """Whether the newest segment has room for records of `size` bytes and a blank."""
        return size + BLANK_SIZE <= self.capacity_end - self.end

    def room_for(self, size: int) -> int:
        """Return the offset of the next record of `size` bytes; the caller may then call `add`.

        If the record and a blank do not fit, the segment is closed and the next one begins.
        """
        end = self.end
        if size + BLANK_SIZE > self.capacity_end - end:
            self._begin_segment()
            end = self.end
        elif not self.pending:
            self.pending.append(SegmentWrite(self._segments[-1], end - self._firsts[-1], []))
        self._room = size
        return end

    def add(self, record: bytes) -> None:
        """Append a record at the offset from `room_for`; it must have the announced size.

        Raises:
            InvariantBroken: when its size differs. Nothing was appended then.
        """
        size = len(record)
        if size != self._room:
            raise InvariantBroken(f"S1: a record of {size} bytes in a room of {self._room}")
        self._room = 0
        self.pending[-1].parts.append(record)
        self.end += size

    def begin_at(self, offset: int) -> None:
        """Let an empty log begin at `offset`: the begin of a segment of the log that is copied.

        Files of a log that was cut at its begin are removed.

        Raises:
            InvariantBroken: when the log is not empty, or no segment begins there.
        """
        if (self._firsts and self.start < self.end) or offset % self._segment_size:
            raise InvariantBroken(f"S1: the log {self.start} to {self.end} began at {offset}")
        self._let_go_of_spare()
        while self._firsts:
            self._segments.pop().close()
            self._disk.remove(segment_path(self._firsts.pop()))
        self.capacity_end = offset
        self.reset_end(offset)

    def add_blank(self, blank: bytes) -> None:
        """Append the blank that ends the newest segment, as it stands in the log that is copied.

        Raises:
            InvariantBroken: when it does not end the segment. Nothing was appended then.
        """
        if len(blank) != self.capacity_end - self.end:
            raise InvariantBroken(f"S1: a blank of {len(blank)} bytes at {self.end}")
        self._extend_write()
        self.pending[-1].parts.append(blank)
        self.end += len(blank)

    def _begin_segment(self) -> None:
        """End the newest segment, and begin a write in the next one."""
        rest = self.capacity_end - self.end
        if self._firsts and self._firsts[-1] >= self.durable:
            try:  # a loss of power may leave the next file: never without this one
                self._segments[-1].sync()
            except OSError as error:  # the next sync would say nothing of it
                raise InvariantBroken(f"S1: the log at {self.end}: {error}") from error
        segment = self._next_segment()  # may raise, so nothing may be changed before
        if rest:
            self._extend_write()
            self.pending[-1].parts.append(encode_blank(rest))
            self.end += rest
        self._keep(self.end, segment)
        self._extend_write()

    def _extend_write(self) -> None:
        segment = self._segments[-1]
        if not self.pending or self.pending[-1].segment is not segment:
            self.pending.append(SegmentWrite(segment, self.end - self._firsts[-1], []))

    def _next_segment(self) -> DiskFile:
        first = self.capacity_end
        if self._spare and self._spare[0] == first:
            segment, self._spare = self._spare[1], None
            return segment
        return self._disk.open(segment_path(first), self._segment_size)

    def prepare_segment(self) -> None:
        """Create the next segment's file in advance, when the newest segment is half full.

        May run in another thread; in the worst case the file is opened twice.
        """
        first = self.capacity_end
        if self._spare and self._spare[0] < first:  # it came too late: the log has its own
            self._let_go_of_spare()
        if self._segments and self._spare is None and first - self.end < self._segment_size // 2:
            segment = self._disk.open(segment_path(first), self._segment_size)
            segment.sync()
            self._spare = (first, segment)

    def take_batch(self) -> LogBatch | None:
        """Return the records since the last call, or None."""
        if not self.pending:
            return None
        batch, self.pending = LogBatch(self.pending, self.end), []
        return batch

    @staticmethod
    def write_batch(batch: LogBatch, zeros_behind: int = 256 * 1024) -> None:
        """Write the batch. Batches must be written in the order of `take_batch`.

        Args:
            batch: what is written.
            zeros_behind: bytes of a write. Behind one with no more, zeros are written ahead of the
                next batch: a small write, and a sync of little, are faster.
        """
        for each in batch.writes:
            each.segment.write(each.at, each.parts)
            if zeros_behind and (size := sum(map(len, each.parts))) <= zeros_behind:
                each.segment.write_ahead(each.at + size)

    @staticmethod
    def sync(batch: LogBatch) -> None:
        """Return when this batch, and all earlier ones, are on the medium."""
        for each in batch.writes:
            each.segment.sync()

    def mark_written(self, end: int) -> None:
        """Note that all bytes before `end` are written to the operating system."""
        if end > self.written:
            self.written = end
            if end > self.end:
                self.invariants()

    def mark_durable(self, end: int) -> None:
        """Note that all bytes before `end` survive a crash, including power loss."""
        self.mark_written(end)
        self.durable = max(self.durable, end)

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` written bytes at `offset`, or fewer at the end of a segment.

        Outside of the log the result is empty.
        """
        at = bisect_right(self._firsts, offset) - 1
        if at < 0 or offset >= self.written:
            return b""
        return self._segments[at].copy(offset - self._firsts[at], size)

    def pieces(self, offset: int, size: int) -> Iterator[bytes]:
        """Yield what `read` returns, piece by piece, each read when it is wanted.

        The pieces are fewer when this part of the log is removed meanwhile.
        """
        for at in range(offset, offset + size, PIECE_SIZE):
            yield self.read(at, min(PIECE_SIZE, offset + size - at))

    def read_joined(self, begins: tuple[int, ...], sizes: tuple[int, ...]) -> bytes:
        """Return the joined results of `read` for these places, with fewer reads.

        Places must ascend. If they do not, because a queue is damaged, the result is undefined.
        """
        begin = begins[0]
        if tuple(accumulate(sizes[:-1], initial=begin)) == begins:  # no gaps
            return self.read(begin, sum(sizes))
        return b"".join(self._pieces(begins, sizes))

    def _pieces(self, begins: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Read across small gaps between places, but not across the end of a segment."""
        begin = begins[0]
        span = begins[-1] + sizes[-1] - begin
        if 0 < span <= sum(sizes) + _GAP * (len(sizes) - 1):
            read = self.read(begin, span)
            if len(read) == span:
                places = zip(begins, sizes, strict=True)
                return [read[at - begin : at - begin + size] for at, size in places]
        if len(sizes) == 1:
            return [self.read(begin, max(0, span))]
        half = len(sizes) // 2
        later = self._pieces(begins[half:], sizes[half:])
        return self._pieces(begins[:half], sizes[:half]) + later

    def segment_at(self, offset: int) -> tuple[int, DiskFile]:
        """Return (first offset, file) of the segment that holds `offset`.

        Raises:
            StoreCorrupt: when no segment holds it.
        """
        at = bisect_right(self._firsts, offset) - 1
        if at < 0 or offset >= self._firsts[at] + self._segment_size:
            raise StoreCorrupt(f"{FOLDER}: no segment holds offset {offset}")
        return self._firsts[at], self._segments[at]

    def log_damage(self, begin: int, end: int) -> None:
        """Log once that there is no valid record between two log offsets."""
        stretch = self.damage.note_damage(begin, end)
        if stretch is None:
            return
        first, _segment = self.segment_at(begin)
        broker_events.LOG_DAMAGED.log(
            log,
            path=segment_path(first),
            file_offset=begin - first,
            log_offset=begin,
            bytes=stretch.end - begin,
        )
        if len(self.damage.stretches) == STRETCHES_MAX:
            broker_events.LOG_DAMAGE_UNLISTED.log(log, places=STRETCHES_MAX)

    def cut(self, end: int) -> None:
        """Let the log end at `end`, durably: remove later segments, zero the rest of the last one.

        Old bytes after the end must never be read as records when the log has grown again exactly
        up to them.
        """
        self._let_go_of_spare()
        while self._firsts and self._firsts[-1] > end:
            self._segments.pop().close()
            self._disk.remove(segment_path(self._firsts.pop()))
        self.capacity_end = self._firsts[-1] + self._segment_size if self._firsts else 0
        if end < self.capacity_end:
            first, segment = self.segment_at(end)
            segment.clear(end - first)
        self.reset_end(end)

    def take_oldest(self, count: int) -> list[tuple[DiskFile, str]]:
        """Forget the oldest segments, but never the newest one or one that is not durable.

        Return them with their paths. They may be closed and removed in another thread.
        """
        taken: list[tuple[DiskFile, str]] = []
        while count > len(taken) and len(self._firsts) > 1 and self._firsts[1] <= self.durable:
            taken.append((self._segments.pop(0), segment_path(self._firsts.pop(0))))
        self.damage.forget_before(self.start)
        return taken

    def segments_from(self, offset: int) -> list[DiskFile]:
        """Return the segments with bytes at or after `offset`."""
        return self._segments[max(bisect_right(self._firsts, offset) - 1, 0) :]

    def _let_go_of_spare(self) -> None:
        if self._spare:
            self._spare[1].close()
            self._spare = None

    def close(self) -> None:
        """Close the files."""
        self._let_go_of_spare()
        for segment in self._segments:
            segment.close()
