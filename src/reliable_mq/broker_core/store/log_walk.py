"""Walking along a log: from one valid record to the next, up to the end of the valid part.

Receives segments. Returns the places of records. Does not judge why the valid part ends. After
recovery has judged a log, use `sound_records`, which skips damage.
"""

from collections.abc import Iterator
from typing import NamedTuple

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.disk import DiskFile
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.wire.record import BLANK_MAGIC, BLANK_SIZE, blank_size_at
from reliable_mq.wire.record_scan import (
    MAGIC_PLACE,
    MAGIC_PREFIX,
    claimed_size_at,
    head_at,
    valid_size_at,
)

_CHUNK = 4 * 1024 * 1024
_LOOK = 64
_SOON = 64 * 1024
_BLANK_MAGIC = BLANK_MAGIC.to_bytes(4)


class FoundRecord(NamedTuple):
    """A valid record: its log offset and size, and its place in a buffer of its segment."""

    offset: int
    size: int
    buffer: memoryview
    at: int


class LogWalk:
    """Iterates over the valid records from `begin` on; records from `start` on are only checked.

    `start` must be the begin of a record, or a place where one may begin. After the iteration `end`
    is the end of the valid part, and `last` is the begin of its last record (-1 without one). The
    caller may change `end`; the next iteration continues there.
    """

    def __init__(self, log: CommitLog, start: int, begin: int) -> None:
        self._log = log
        self._begin = begin
        self.end = start
        self.last = -1

    def __iter__(self) -> Iterator[FoundRecord]:
        size = self._log.segment_size
        while self.end < self._log.capacity_end:
            first, segment = self._log.segment_at(self.end)
            yield from self._records(first, segment)
            rest = first + size - self.end
            is_closed = blank_size_at(segment.read(self.end - first, 8), 0) == rest
            if not is_closed or first + size == self._log.capacity_end:
                return
            self.end = first + size

    def _records(self, first: int, segment: DiskFile) -> Iterator[FoundRecord]:
        chunk_size = _CHUNK
        while True:
            chunk_offset = self.end
            buffer = memoryview(segment.read(chunk_offset - first, chunk_size))
            at = 0
            while size := valid_size_at(buffer, at, chunk_offset + at):
                if self.end >= self._begin:
                    yield FoundRecord(self.end, size, buffer, at)
                self.last = self.end
                at += size
                self.end = chunk_offset + at
            if at == 0:  # no record, or one that is larger than the chunk
                claimed = claimed_size_at(buffer, 0, chunk_offset)
                rest = first + self._log.segment_size - chunk_offset
                if not len(buffer) < claimed <= min(rest, FRAME_SIZE_MAX):
                    return
                chunk_size = max(claimed, _CHUNK)


def record_at(log: CommitLog, offset: int) -> FoundRecord | None:
    """Return the valid record at `offset`, or None."""
    if not log.start <= offset < log.capacity_end:
        return None
    first, segment = log.segment_at(offset)
    size = claimed_size_at(memoryview(segment.copy(offset - first, _LOOK)), 0, offset)
    if size > FRAME_SIZE_MAX:  # no larger record can have arrived
        return None
    buffer = memoryview(segment.copy(offset - first, size))
    return FoundRecord(offset, size, buffer, 0) if valid_size_at(buffer, 0, offset) else None


def next_record(log: CommitLog, after: int, until: int | None = None) -> FoundRecord | None:
    """Return the first valid record that begins after the offset `after`, at any place.

    Segments that begin at or after `until` are not searched.
    """
    for first in log.segment_starts:
        if first + log.segment_size <= after:
            continue
        if until is not None and first >= until:
            return None
        _first, segment = log.segment_at(first)
        at = max(after + 1 - first, 0)
        while (found := segment.find(MAGIC_PREFIX, at + MAGIC_PLACE)) >= 0:
            at = found - MAGIC_PLACE
            record = record_at(log, first + at)
            if record:
                return record
            at += 1
    return None


def damage_end(log: CommitLog, bad: int) -> int:
    """Return the begin of the segment's next valid record; without one, the end of its data."""
    first, _segment = log.segment_at(bad)
    later = next_record(log, bad, bad + 1)
    return later.offset if later else min(first + log.segment_size, log.written)


def blank_behind(log: CommitLog, bad: int) -> int:
    """Return the begin of the blank that ends the segment of `bad`; -1 without a blank."""
    first, segment = log.segment_at(bad)
    at = bad - first
    while (found := segment.find(_BLANK_MAGIC, at)) >= 0:
        place = found + len(_BLANK_MAGIC) - BLANK_SIZE
        rest = log.segment_size - place
        if first + place > bad and blank_size_at(segment.read(place, BLANK_SIZE), 0) == rest:
            return first + place
        at = found + 1
    return -1


def sound_records(log: CommitLog, begin: int) -> Iterator[FoundRecord]:
    """Yield the valid records from `begin` on; damage in between is logged and skipped."""
    walk = LogWalk(log, begin, begin)
    while True:
        yield from walk
        later = next_record(log, walk.end) if walk.end < log.written else None
        if later is None:
            return
        log.log_damage(walk.end, later.offset)
        walk.end = later.offset


def store_time_ms(record: FoundRecord) -> int:
    """Return the store time of a record, in milliseconds."""
    return head_at(record.buffer, record.at).store_time_ms


def stored_after_ms(log: CommitLog, offset: int) -> int | None:
    """Return when the first record at or soon after an offset was stored; None: there is none.

    The offset may be inside a record, as one that a slave of Apache's has reported.
    """
    begin = max(offset, log.start)
    end = min(begin + _SOON, log.written)
    record = record_at(log, begin) if begin < end else None
    if record is None and begin < end:
        part = log.read(begin, end - begin)
        at = part.find(MAGIC_PREFIX, MAGIC_PLACE)
        while at >= 0 and record is None:
            record = record_at(log, begin + at - MAGIC_PLACE)
            at = part.find(MAGIC_PREFIX, at + 1)
    return store_time_ms(record) if record is not None else None
