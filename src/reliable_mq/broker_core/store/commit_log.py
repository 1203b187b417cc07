"""The commit log: the only truth of a broker. Everything else can be built from it again.

The log is one sequence of records, cut into segments of one size, each a file named by the offset
of its first byte (20 digits). A record never spans two segments: when it does not fit, a blank of
eight bytes marks the rest of the segment as unused and the record begins the next one.

Appending is split so that one write and one sync serve many messages, off the event loop:
`room_for` gives a record its offset and `add` keeps its bytes; `take_batch` hands out all that came
since; `write` and `sync` may run in another thread; `mark_written` and `mark_durable` come back.

Invariant S1: 0 <= start <= durable <= written <= end, and batches are contiguous.
Source: Apache RocketMQ `CommitLog`, `MappedFileQueue`.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from reliable_mq.broker_core.store.damage import STRETCHES_MAX, KnownDamage
from reliable_mq.broker_core.store.disk import Disk, DiskFile
from reliable_mq.errors import InvariantBroken, StoreCorrupt
from reliable_mq.wire.record import BLANK_SIZE, encode_blank

log = logging.getLogger(__name__)

FOLDER = "commitlog"

_PAGE = 4096  # the size of a segment is a multiple of it, as a rule
_GAP = 16 * 1024  # bytes that are read sooner than a read of its own begins


class SegmentWrite(NamedTuple):
    """Bytes for one segment: `parts` one after another from `at`."""

    segment: DiskFile
    at: int
    parts: list[bytes]


class LogBatch(NamedTuple):
    """What one turn appended, in log order; `end` is the log's end after it."""

    writes: list[SegmentWrite]
    end: int


def segment_path(first_offset: int) -> str:
    """Return the path of the segment that begins at `first_offset`."""
    return f"{FOLDER}/{first_offset:020d}"


class CommitLog:
    """The segments of one log, and how far each promise about them has come."""

    def __init__(self, disk: Disk, segment_size: int) -> None:
        """Open the segments that are there; nothing is changed.

        Raises:
            StoreCorrupt: when a segment is missing in the middle or has another size.
        """
        self._disk = disk
        self._segment_size = segment_size
        self._firsts: list[int] = []
        self._segments: list[DiskFile] = []
        self._spare: tuple[int, DiskFile] | None = None
        self._pending: list[SegmentWrite] = []
        self._is_read_ahead = True
        self._room = 0  # the size of the room that was given last
        self.capacity_end = 0  # where the newest segment ends
        self.end = 0
        self.written = 0
        self.durable = 0
        self.damage = KnownDamage()
        self._load()

    def _load(self) -> None:
        names = [name for name in self._disk.names(FOLDER) if name.isdecimal() and len(name) == 20]
        if names and self._disk.size_of(segment_path(int(names[-1]))) == 0:
            names.pop()  # the process died while it made this file
        for name in names:
            path = f"{FOLDER}/{name}"
            first = int(name)
            expected = self._firsts[-1] + self._segment_size if self._firsts else first
            size = self._disk.size_of(path)
            if size != self._segment_size:
                raise StoreCorrupt(
                    f"{path}: {size} bytes instead of {self._segment_size}; "
                    f"{self._advice_on_size(size, names)}"
                )
            if first != expected:
                raise StoreCorrupt(
                    f"{segment_path(expected)}: this segment is missing, later ones are there; "
                    "restore it from a copy"
                )
            self._keep(first, self._disk.open(path, self._segment_size))
        self.reset_end(self.start)

    def _advice_on_size(self, size: int, names: list[str]) -> str:
        """Say what may help when a segment has not the size that is set."""
        others = (self._disk.size_of(f"{FOLDER}/{name}") for name in names)
        is_cut = size % _PAGE or self._segment_size in others
        if size < self._segment_size and is_cut:
            return "the file is cut short; restore it from a copy"
        return "set mappedFileSizeCommitLog as it was when the log was written"

    def _keep(self, first: int, segment: DiskFile) -> None:
        self._firsts.append(first)
        self._segments.append(segment)
        if not self._is_read_ahead:
            segment.read_ahead(is_wanted=False)
        self.capacity_end = first + self._segment_size

    def read_ahead(self, *, is_wanted: bool) -> None:
        """Let the system read more than it is asked for, in all segments; it does at first."""
        if is_wanted != self._is_read_ahead:
            self._is_read_ahead = is_wanted
            for segment in self._segments:
                segment.read_ahead(is_wanted=is_wanted)

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

    def room_for(self, size: int) -> int:
        """Return the offset of the next record, of `size` bytes; `add` follows, or nothing does.

        Closes the segment and opens the next one when the record does not fit with a blank.
        """
        if not self._pending or size + BLANK_SIZE > self.capacity_end - self.end:
            self._pend(size)
        self._room = size
        return self.end

    def add(self, record: bytes) -> None:
        """Append a record at the offset that `room_for` gave; it fills the room.

        Raises:
            InvariantBroken: when it does not. Nothing was appended then.
        """
        if len(record) != self._room:
            raise InvariantBroken(f"S1: a record of {len(record)} bytes in a room of {self._room}")
        self._room = 0
        self._pending[-1].parts.append(record)
        self.end += len(record)

    def _pend(self, size: int) -> None:
        """Begin a write at the log's end, in the segment that has room for `size` bytes."""
        rest = self.capacity_end - self.end
        if size + BLANK_SIZE > rest:
            segment = self._next_segment()  # raises before anything was changed
            if rest:
                self._pend_write()
                self._pending[-1].parts.append(encode_blank(rest))
                self.end += rest
            self._keep(self.end, segment)
        self._pend_write()

    def _pend_write(self) -> None:
        segment = self._segments[-1]
        if not self._pending or self._pending[-1].segment is not segment:
            self._pending.append(SegmentWrite(segment, self.end - self._firsts[-1], []))

    def _next_segment(self) -> DiskFile:
        first = self.capacity_end
        if self._spare and self._spare[0] == first:
            segment = self._spare[1]
            self._spare = None
            return segment
        return self._disk.open(segment_path(first), self._segment_size)

    def prepare_segment(self) -> None:
        """Make the next segment's file ahead of need, when the newest is half full.

        May run in another thread: at worst the file is opened twice.
        """
        first = self.capacity_end
        if self._spare and self._spare[0] < first:  # it came too late, the log went on without
            self._let_go_of_spare()
        if self._segments and self._spare is None and first - self.end < self._segment_size // 2:
            segment = self._disk.open(segment_path(first), self._segment_size)
            segment.sync()
            self._spare = (first, segment)

    @property
    def is_pending(self) -> bool:
        """Whether something was appended since `take_batch`."""
        return bool(self._pending)

    def take_batch(self) -> LogBatch | None:
        """Return what was appended since the last call, or None."""
        if not self._pending:
            return None
        batch = LogBatch(self._pending, self.end)
        self._pending = []
        return batch

    @staticmethod
    def write(batch: LogBatch) -> None:
        """Write the batch; batches must be written in the order in which they were taken."""
        for segment, at, parts in batch.writes:
            segment.write(at, parts)
            segment.write_ahead(at + sum(map(len, parts)))

    @staticmethod
    def sync(batch: LogBatch) -> None:
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
        return self._segments[at].copy(offset - self._firsts[at], size)

    def read_joined(self, begins: tuple[int, ...], sizes: tuple[int, ...]) -> bytes:
        """Return what `read` returns for these places, joined, in fewer reads.

        Places ascend; of one that does not, as a damaged queue names it, anything may come.
        """
        begin = begins[0]
        if tuple(accumulate(sizes[:-1], initial=begin)) == begins:  # nothing lies between them
            return self.read(begin, sum(sizes))
        return b"".join(self._pieces(begins, sizes))

    def _pieces(self, begins: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Read over what lies between neighbours, unless it is much or a segment ends there."""
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
            StoreCorrupt: when the log does not hold it.
        """
        at = bisect_right(self._firsts, offset) - 1
        if at < 0 or offset >= self._firsts[at] + self._segment_size:
            raise StoreCorrupt(f"{FOLDER}: no segment holds offset {offset}")
        return self._firsts[at], self._segments[at]

    def name_damage(self, begin: int, end: int) -> None:
        """Name in the process's log, once, that no valid record lies between two log offsets."""
        stretch = self.damage.note(begin, end)
        if stretch is None:
            return
        first, _segment = self.segment_at(begin)
        log.warning(
            "%s: no valid record at %d (log offset %d), %d bytes are damaged: readers skip them "
            "and get what lies behind; restore the file from a copy",
            segment_path(first),
            begin - first,
            begin,
            stretch.end - begin,
        )
        if len(self.damage.stretches) == STRETCHES_MAX:
            log.error("damage at %d places was named, what follows is not", STRETCHES_MAX)

    def cut(self, end: int) -> None:
        """Let the log end at `end`, durably: later segments go, and the rest of its own is zero.

        What was there must never be taken for records again, when the log was written anew exactly
        up to it.
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
        """Forget the oldest segments, never the newest, nor what is not durable.

        Return them with their paths: they may be closed and removed in another thread.
        """
        taken: list[tuple[DiskFile, str]] = []
        while count > len(taken) and len(self._firsts) > 1 and self._firsts[1] <= self.durable:
            taken.append((self._segments.pop(0), segment_path(self._firsts.pop(0))))
        self.damage.forget_before(self.start)
        return taken

    def segments_from(self, offset: int) -> list[DiskFile]:
        """Return the segments that hold bytes at or after `offset`."""
        return self._segments[max(bisect_right(self._firsts, offset) - 1, 0) :]

    def _let_go_of_spare(self) -> None:
        if self._spare:
            self._spare[1].close()
            self._spare = None

    def close(self) -> None:
        """Let go of the files."""
        self._let_go_of_spare()
        for segment in self._segments:
            segment.close()
