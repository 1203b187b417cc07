"""The reader of a store's checkpoints: what consumers by the message have in flight.

Receives the path of a store directory. It follows the queues of timed messages and of the revive
log backwards, to where everything is over. It opens files for reading only.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import numpy as np

from reliable_mq.errors import RecordError
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE, RECORD_SIZE_MAX
from reliable_mq.reconcile.brokers.file_queues import (
    QUEUES,
    UNITS,
    QueueFiles,
    is_offset_name,
    queues_of,
)
from reliable_mq.reconcile.brokers.offset_table import Progress
from reliable_mq.reconcile.brokers.popped import (
    INVISIBLE_MS_MAX,
    LATE_MS,
    TAGS,
    IsWanted,
    PopOf,
    holds_checkpoints,
    in_flight,
    note_tag,
    pops_of,
)
from reliable_mq.wire.java_hash import java_string_hash
from reliable_mq.wire.properties import UNIQ_KEY
from reliable_mq.wire.record import Record, decode_record

_BLOCK = 4096
_TAG_CODES = frozenset(map(java_string_hash, TAGS))


def read_in_flight(store: str, now_ms: int, newest_ms: int) -> Progress:
    """Return the first offset that each group has in flight in each queue, by the message.

    Args:
        store: the store directory.
        now_ms: the moment, by the broker's clock.
        newest_ms: when the newest record of the log was stored.
    """
    oldest_ms = min(now_ms, newest_ms) - INVISIBLE_MS_MAX - LATE_MS
    return in_flight(_notes(Path(store), oldest_ms), now_ms, newest_ms)


def read_pops(
    store: str, message_id: str, is_likely: IsWanted, since_ms: int
) -> list[tuple[PopOf, int]]:
    """Return how often a message was handed out, with the failed attempts before each.

    Args:
        store: the store directory.
        message_id: the message.
        is_likely: whether the message may lie at a place. Its record there is read.
        since_ms: only hand-outs since this time are wanted.
    """
    with closing(_Places(Path(store))) as places:
        is_there = places.holds(message_id)

        def is_wanted(topic: str, queue_id: int, offset: int) -> bool:
            return is_likely(topic, queue_id, offset) and is_there(topic, queue_id, offset)

        found = pops_of(_notes(Path(store), since_ms), is_wanted)
        return [(pop, places.attempts(pop.topic, pop.queue_id, pop.offset)) for pop in found]


def _notes(root: Path, oldest_ms: int) -> Iterator[tuple[str, bytes]]:
    """Yield tag and body of the notes of a store since a time."""
    queues = [queue for queue in queues_of(root) if holds_checkpoints(queue.topic)]
    if queues:
        with closing(_Segments(root / "commitlog")) as segments:
            for queue in queues:
                yield from _newest(queue, segments, oldest_ms)


class _Segments:
    """The files of a log; each is opened once, when its first record is read."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(path for path in folder.iterdir() if is_offset_name(path.name))
        self._begins = [int(path.name) for path in self._paths]
        self._opened: dict[int, BinaryIO | None] = {}

    def close(self) -> None:
        """Close all files."""
        for file in filter(None, self._opened.values()):
            file.close()

    def record(self, offset: int, size: int) -> Record | None:
        """Return the record at a log offset; None: it is not there, or cannot be read."""
        index = bisect_right(self._begins, offset) - 1
        if index < 0 or not 0 < size <= RECORD_SIZE_MAX:
            return None
        try:
            if index not in self._opened:
                self._opened[index] = None  # if it is gone, it stays so
                self._opened[index] = self._paths[index].open("rb", buffering=0)
            file = self._opened[index]
            if file is None:
                return None
            return decode_record(os.pread(file.fileno(), size, offset - self._begins[index]))
        except (OSError, RecordError):
            return None


class _Places:
    """Reads records by their places in queues; each once."""

    def __init__(self, root: Path) -> None:
        self._queues = root / QUEUES
        self._segments = _Segments(root / "commitlog")
        self._records: dict[tuple[str, int, int], Record | None] = {}

    def close(self) -> None:
        """Close all files."""
        self._segments.close()

    def holds(self, message_id: str) -> IsWanted:
        """Return whether the record at a place is one of a message."""

        def is_there(topic: str, queue_id: int, offset: int) -> bool:
            record = self._at(topic, queue_id, offset)
            return record is not None and record.property_map().get(UNIQ_KEY) == message_id

        return is_there

    def attempts(self, topic: str, queue_id: int, offset: int) -> int:
        """Return how many attempts have failed at the message of a place."""
        record = self._at(topic, queue_id, offset)
        return 0 if record is None else record.reconsume_times

    def _at(self, topic: str, queue_id: int, offset: int) -> Record | None:
        place = topic, queue_id, offset
        if place not in self._records:
            self._records[place] = self._read(self._queues / topic / str(queue_id), offset)
        return self._records[place]

    def _read(self, folder: Path, offset: int) -> Record | None:
        if not folder.is_dir():
            return None
        units = np.frombuffer(QueueFiles(folder).read_units(offset, 1), UNITS)
        if not len(units):
            return None
        return self._segments.record(int(units[0]["offset"]), int(units[0]["size"]))


def _newest(queue: QueueFiles, segments: _Segments, oldest_ms: int) -> Iterator[tuple[str, bytes]]:
    """Yield tag and body of the notes that a queue lists, from the newest back."""
    low, high = queue.bounds()
    while high > low:
        first = max(low, high - _BLOCK)
        units = _units(queue, first, high)
        for offset, size, tags_code in reversed(units.tolist()):
            if tags_code not in _TAG_CODES:
                continue
            record = segments.record(offset, size)
            if record is not None and (tag := note_tag(queue.topic, record.property_map())):
                yield tag, record.body
        if not len(units) or _is_before(segments, units[0], oldest_ms):
            return
        high = first


def _units(queue: QueueFiles, first: int, end: int) -> np.ndarray:
    """Return the units of a queue from `first` to `end` - 1; some may lie in the next file."""
    data = b""
    while (missing := end - first - len(data) // CONSUME_QUEUE_UNIT_SIZE) > 0:
        more = queue.read_units(end - missing, missing)
        if len(more) < CONSUME_QUEUE_UNIT_SIZE:
            break
        data += more[: len(more) // CONSUME_QUEUE_UNIT_SIZE * CONSUME_QUEUE_UNIT_SIZE]
    return np.frombuffer(data, UNITS)


def _is_before(segments: _Segments, unit: np.void, oldest_ms: int) -> bool:
    """Return whether the record of a unit was stored before a time; also if it is gone."""
    record = segments.record(int(unit["offset"]), int(unit["size"]))
    return record is None or record.store_time_ms < oldest_ms
