"""The reader of a store's consume queues and committed offsets. It does not open the store.

Receives the path of a store directory, of a running broker or a copy, ours or Apache's. Returns the
messages that each queue still has, the units of a queue, the due times of delayed messages, and the
committed offsets. It opens files for reading only.

Source: Apache RocketMQ `ConsumeQueue`, `ConsumerOffsetManager`, `ScheduleMessageService`.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from reliable_mq.errors import StoreError
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE
from reliable_mq.reconcile.brokers.log_roles import DEAD_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from reliable_mq.reconcile.brokers.offset_table import Progress, committed_offsets, group_names

OFFSETS = "consumerOffset.json"
GROUPS = "subscriptionGroup.json"
TOPICS = "topics.json"
QUEUES = "consumequeue"

_UNIT = struct.Struct(">qiq")
UNITS = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_BLANK_UNIT_SIZE_FIELD = 0x7FFFFFFF
_NAME_LENGTH = 20
_BLOCK_UNITS = 4096

QUEUE_SCHEMA = pa.schema(
    [
        *(("topic", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64())),
        *(("commit_log_offset", pa.int64()), ("size", pa.int32()), ("tags_code", pa.int64())),
    ]
)
"""One row for each message that a consume queue lists."""


class QueueFiles:
    """The files of one consume queue, for reading only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.topic, self.queue_id = folder.parent.name, int(folder.name)
        files = [path for path in folder.iterdir() if is_offset_name(path.name)]
        self._files = [(int(path.name), path) for path in sorted(files)]

    @property
    def size(self) -> int:
        """The size of all files in bytes, including blank units."""
        return sum(path.stat().st_size for _, path in self._files)

    def _unit(self, index: int) -> tuple[int, int]:
        """Return (log offset, size) of a unit. Size 0: it was not written."""
        data = self.read_units(index, 1)
        return _UNIT.unpack(data)[:2] if len(data) == _UNIT.size else (0, 0)

    def bounds(self) -> tuple[int, int]:
        """Return the first unit of the files, and the one after the last, including blanks."""
        if not self._files:
            return 0, 0
        last_begin, last_path = self._files[-1]
        low = self._files[0][0] // CONSUME_QUEUE_UNIT_SIZE
        high = (last_begin + last_path.stat().st_size) // CONSUME_QUEUE_UNIT_SIZE
        return low, _first_index(low, high, lambda index: self._unit(index)[1] <= 0)

    def first_at_or_after(self, log_offset: int) -> tuple[int, int] | None:
        """Return (unit, its log offset) of the first unit at or after `log_offset`, or None."""
        low, high = self.bounds()

        def is_behind(index: int) -> bool:
            offset, size = self._unit(index)
            return size != _BLANK_UNIT_SIZE_FIELD and offset >= log_offset

        found = _first_index(low, high, is_behind)
        return (found, self._unit(found)[0]) if found < high else None

    def last(self) -> tuple[int, int]:
        """Return the log offset and the end of the last record that this queue lists.

        Both are 0 if it lists none.
        """
        low, high = self.bounds()
        offset, size = self._unit(high - 1) if high > low else (0, 0)
        return (offset, offset + size) if size not in (0, _BLANK_UNIT_SIZE_FIELD) else (0, 0)

    def was_written(self) -> bool:
        """Return whether this queue ever had a message, which may have expired."""
        return self.bounds()[1] > 0

    def flaw(self) -> str | None:
        """Return the first missing part of the files as one clause, or None."""
        for (begin, path), (following, _) in zip(self._files, self._files[1:], strict=False):
            size = path.stat().st_size
            if begin + size != following:
                name = f"consumequeue/{self.topic}/{self.queue_id}/{path.name}"
                return f"{name} has {size:,} of {following - begin:,} bytes"
        return None

    def read_units(self, index: int, count: int) -> bytes:
        """Return the bytes of up to `count` units from `index` on, from one file only."""
        at = index * CONSUME_QUEUE_UNIT_SIZE
        for begin, path in reversed(self._files):
            if 0 <= begin <= at:
                with path.open("rb") as file:
                    file.seek(at - begin)
                    return file.read(count * CONSUME_QUEUE_UNIT_SIZE)
        return b""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the listed messages of the queue, as batches of `QUEUE_SCHEMA`."""
        for first, units in self._blocks():
            sizes = units["size"].astype(np.int32)
            listed = np.flatnonzero((sizes > 0) & (sizes != _BLANK_UNIT_SIZE_FIELD))
            columns = [
                pa.repeat(pa.scalar(self.topic), len(listed)),
                pa.repeat(pa.scalar(self.queue_id, pa.int32()), len(listed)),
                pa.array(first + listed),
                pa.array(units["offset"][listed].astype(np.int64)),
                pa.array(sizes[listed]),
                pa.array(units["tags_code"][listed].astype(np.int64)),
            ]
            yield pa.record_batch(columns, schema=QUEUE_SCHEMA)

    def _blocks(self) -> Iterator[tuple[int, Any]]:
        """Yield blocks of units in the order of the queue, including blanks.

        A block is (number of its first unit, units). Units are a numpy array with the fields
        `offset`, `size` and `tags_code`.
        """
        _, high = self.bounds()
        for begin, path in self._files:
            first = begin // CONSUME_QUEUE_UNIT_SIZE
            with path.open("rb") as file:
                while first < high:
                    data = file.read(_BLOCK_UNITS * CONSUME_QUEUE_UNIT_SIZE)
                    count = min(len(data) // CONSUME_QUEUE_UNIT_SIZE, high - first)
                    if count <= 0:
                        break
                    yield first, np.frombuffer(data, UNITS, count)
                    first += count


class DeliveryTimes:
    """Finds the due times of delayed messages, in the units of the delay queues.

    A unit of a delay queue has the due time in the place of the tag's hash. So the times are right
    for any delay levels of the broker. Queues are read in blocks. The last block of each queue is
    kept, because a log has the messages of a queue in their order.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._blocks: dict[int, tuple[int, bytes]] = {}
        self._queues: dict[int, QueueFiles | None] = {}

    def __call__(self, queue_id: int, queue_offset: int, log_offset: int) -> int | None:
        """Return the time in milliseconds since the epoch, or None if the queue lacks it."""
        first, block = self._blocks.get(queue_id, (0, b""))
        at = (queue_offset - first) * _UNIT.size
        if not 0 <= at < len(block):
            block = self._read(queue_id, queue_offset)
            self._blocks[queue_id] = (queue_offset, block)
            at = 0
        if at + _UNIT.size > len(block):
            return None
        offset, _, time = _UNIT.unpack_from(block, at)
        return time if offset == log_offset else None

    def _read(self, queue_id: int, queue_offset: int) -> bytes:
        if queue_id not in self._queues:
            folder = self._store / "consumequeue" / SCHEDULE_TOPIC / str(queue_id)
            self._queues[queue_id] = QueueFiles(folder) if folder.is_dir() else None
        queue = self._queues[queue_id]
        if queue is not None:
            with suppress(FileNotFoundError):  # retention removed it
                return queue.read_units(queue_offset, _BLOCK_UNITS)
        return b""


def _first_index(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first index in `low` … `high` - 1 from which `holds` is true, else `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def is_offset_name(name: str) -> bool:
    return len(name) == _NAME_LENGTH and name.isdigit()


def queues_of(store: Path) -> Iterator[QueueFiles]:
    """Yield every consume queue of a store, topics in order."""
    folder = store / QUEUES
    if folder.is_dir():
        for topic in sorted(folder.iterdir()):
            for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                if queue.name.isdigit() and queue.is_dir():
                    yield QueueFiles(queue)


@retry(
    retry=retry_if_exception_type(StoreError),
    stop=stop_after_delay(2.0),
    wait=wait_fixed(0.02),
    reraise=True,
)
def read_progress(store: str) -> Progress:
    """Return the committed offsets of a store. Without the file there are none; see `has_progress`.

    Apache's broker writes the file in place, so it may be empty for a moment. The older copy may be
    empty, too. So an unreadable file is read again for two seconds.

    Raises:
        StoreError: when the file exists but stays unreadable.
    """
    trouble: Exception | None = None
    for path in with_copy(store, OFFSETS):
        try:
            return committed_offsets(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):  # the second one: `store` is a file
            continue
        except ValueError as error:
            trouble = error
    if trouble is not None:
        raise StoreError(f"{Path(store)}/config/{OFFSETS} cannot be read: {trouble}")
    return {}


def has_progress(store: str, queues: Iterable[QueueFiles]) -> bool:
    """Return whether the committed offsets of a store are known.

    A broker writes the offsets file when a group commits its first offset. It writes the topics
    file before the first message. If both are missing, they were lost or not copied. If only the
    offsets file is missing, it was lost if a retry or dead-letter topic has messages.
    """
    if any(path.exists() for path in with_copy(store, OFFSETS)):
        return True
    copies = (queue for queue in queues if queue.topic.startswith((RETRY_PREFIX, DEAD_PREFIX)))
    has_topics = any(path.exists() for path in with_copy(store, TOPICS))
    return has_topics and not any(queue.was_written() for queue in copies)


def read_groups(store: str) -> frozenset[str]:
    """Return the consumer groups in a store's settings; none if they are unreadable."""
    for path in with_copy(store, GROUPS):
        with suppress(OSError, ValueError):
            return group_names(path.read_bytes())
    return frozenset()


def with_copy(store: str, name: str) -> tuple[Path, Path]:
    """Return the paths of one of a broker's tables and of its older copy."""
    folder = Path(store) / "config"
    return folder / name, folder / f"{name}.bak"
