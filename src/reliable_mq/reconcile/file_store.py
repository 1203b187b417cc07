"""A store directory as reconciliation sees it: segments, queue borders, consumer offsets.

Receives the path of a store directory, of a running broker or a copy, ours or Apache's. Hands on
where its commit log begins and surely reaches to, partitions of it that begin and end between
records, the first offset that each queue still has, and the progress of the consumer groups. It
opens files for reading only and takes no lock, so it disturbs no broker.

Source: Apache RocketMQ `MappedFileQueue`, `ConsumeQueue`, `ConsumerOffsetManager`.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from reliable_mq.errors import InvariantBroken, StoreError
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE, RECORD_SIZE_MAX
from reliable_mq.reconcile.log_scan import End, LogRow, damaged, find_record, scan
from reliable_mq.wire import fastjson

_UNIT = struct.Struct(">qiq")
_BLANK_UNIT_SIZE_FIELD = 0x7FFFFFFF
_NAME_LENGTH = 20
_MARKS_OF_A_STORE = ("commitlog", "lock", "abort", "checkpoint", "config")
_CHUNK_SIZE = 8 * 1024 * 1024
_HEAD_OVERLAP = 64  # so that a head that two chunks share is found whole in the second
SPLIT_SIZE = 64 * 1024 * 1024

if not RECORD_SIZE_MAX < _CHUNK_SIZE <= SPLIT_SIZE:
    raise InvariantBroken("a chunk holds at least one record, a partition at least one chunk")


@dataclass(frozen=True)
class LogPartition:
    """A stretch of one segment, in log offsets: records that begin in `start` .. `stop` - 1.

    `start` and `stop` lie between records; the last partition of a segment stops at the segment's
    end. `sure_end`: up to here the consume queues know of records, so that bytes before it that
    are no record are damage, and bytes behind it are simply the end of the log.
    """

    path: str
    segment: int
    start: int
    stop: int
    sure_end: int


@dataclass(frozen=True)
class StoreLayout:
    """What a store directory holds. `queue_begins`: the first message that each queue has still."""

    log_begin: int
    sure_end: int
    partitions: tuple[LogPartition, ...]
    queue_begins: dict[tuple[str, int], int]


class QueueFiles:
    """The files of one consume queue, read without opening a queue."""

    def __init__(self, folder: Path) -> None:
        self.topic, self.queue_id = folder.parent.name, int(folder.name)
        files = [path for path in folder.iterdir() if _is_offset_name(path.name)]
        self._files = [(int(path.name), path) for path in sorted(files)]

    def _unit(self, index: int) -> tuple[int, int]:
        """Return (log offset, size) of a unit; size 0 where none was written."""
        at = index * CONSUME_QUEUE_UNIT_SIZE
        for begin, path in reversed(self._files):
            if begin <= at:
                with path.open("rb") as file:
                    file.seek(at - begin)
                    data = file.read(_UNIT.size)
                return _UNIT.unpack(data)[:2] if len(data) == _UNIT.size else (0, 0)
        return 0, 0

    def bounds(self) -> tuple[int, int]:
        """Return the first and one past the last unit that the files hold, blanks included."""
        if not self._files:
            return 0, 0
        last_begin, last_path = self._files[-1]
        low = self._files[0][0] // CONSUME_QUEUE_UNIT_SIZE
        high = (last_begin + last_path.stat().st_size) // CONSUME_QUEUE_UNIT_SIZE
        return low, _first_index(low, high, lambda index: self._unit(index)[1] <= 0)

    def first_at_or_after(self, log_offset: int) -> tuple[int, int] | None:
        """Return (unit, its log offset) of the first one at or behind `log_offset`, or None."""
        low, high = self.bounds()

        def is_behind(index: int) -> bool:
            offset, size = self._unit(index)
            return size != _BLANK_UNIT_SIZE_FIELD and offset >= log_offset

        found = _first_index(low, high, is_behind)
        return (found, self._unit(found)[0]) if found < high else None

    def log_end(self) -> int:
        """Return the log offset behind the last record that this queue knows."""
        low, high = self.bounds()
        offset, size = self._unit(high - 1) if high > low else (0, 0)
        return offset + size if size != _BLANK_UNIT_SIZE_FIELD else 0


def _first_index(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first index in `low` .. `high` - 1 from which on `holds` is true, else `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _is_offset_name(name: str) -> bool:
    return len(name) == _NAME_LENGTH and name.isdigit()


def read_layout(store: str, split_size: int = SPLIT_SIZE) -> StoreLayout:
    """Find the segments of a store and cut them into partitions.

    Args:
        store: the store directory (`storePathRootDir`).
        split_size: about how many bytes one partition has.

    Raises:
        StoreError: when `store` is no store directory.
    """
    root = Path(store)
    log = root / "commitlog"
    if not root.is_dir():
        raise StoreError(f"{store} is no store directory: it does not exist")
    if not any((root / mark).exists() for mark in _MARKS_OF_A_STORE):
        raise StoreError(f"{store} is no store directory: it has no folder commitlog")
    files = sorted(log.iterdir()) if log.is_dir() else []  # made with the first message
    segments = [path for path in files if _is_offset_name(path.name)]
    if files and not segments:
        raise StoreError(f"{log} holds no segment, but {files[0].name}")
    queues = list(_queues(root / "consumequeue"))
    sure_end = max((queue.log_end() for queue in queues), default=0)
    log_begin = int(segments[0].name) if segments else 0
    begins = {}
    for queue in queues:
        found = queue.first_at_or_after(log_begin)
        begins[queue.topic, queue.queue_id] = found[0] if found else queue.bounds()[1]
    widest = max(queues, key=lambda queue: queue.bounds()[1] - queue.bounds()[0], default=None)
    partitions: list[LogPartition] = []
    expected = log_begin
    for path in segments:
        base, size = int(path.name), path.stat().st_size
        if expected < base:
            partitions.append(LogPartition("", expected, expected, base, sure_end))
        expected = base + size
        borders = _borders(widest, base, min(base + size, sure_end), split_size)
        stops = (*borders[1:], base + size)
        partitions += [
            LogPartition(str(path), base, start, stop, sure_end)
            for start, stop in zip(borders, stops, strict=True)
        ]
    if expected < sure_end:
        partitions.append(LogPartition("", expected, expected, sure_end, sure_end))
    return StoreLayout(log_begin, sure_end, tuple(partitions), begins)


def _queues(folder: Path) -> Iterator[QueueFiles]:
    if folder.is_dir():
        for topic in sorted(folder.iterdir()):
            for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                if queue.name.isdigit() and queue.is_dir():
                    yield QueueFiles(queue)


def _borders(queue: QueueFiles | None, begin: int, end: int, split_size: int) -> list[int]:
    """Return log offsets in `begin` .. `end`, about `split_size` apart, where records begin."""
    borders = [begin]
    while queue is not None and borders[-1] + split_size < end:
        found = queue.first_at_or_after(borders[-1] + split_size)
        if found is None or found[1] >= end:
            break
        borders.append(found[1])
    return borders


def read_partition(partition: LogPartition, *, check_body: bool) -> Iterator[list[LogRow]]:
    """Yield the rows of a partition, some thousands at a time."""
    if not partition.path:
        yield [damaged(partition.start, partition.stop - partition.start)]
        return
    with Path(partition.path).open("rb") as file:
        at = partition.start
        while at < partition.stop:
            chunk = _read(file, at - partition.segment, min(_CHUNK_SIZE, partition.stop - at))
            rows, used, end = scan(chunk, at, check_body=check_body)
            if rows:
                yield rows
            at += used
            if end is End.BLANK:
                return
            if end is End.INVALID or used == 0:
                good = _next_record(file, partition, at)
                damage_end = min(good or partition.stop, partition.sure_end)
                if at < damage_end:
                    yield [damaged(at, damage_end - at)]
                if good is None:
                    return
                at = good


def _next_record(file: BinaryIO, partition: LogPartition, damage: int) -> int | None:
    """Return the log offset of the first record behind `damage` that the queues can know of."""
    end = min(partition.stop, partition.sure_end)
    at = damage + 1
    while at < end:
        chunk = _read(file, at - partition.segment, min(_CHUNK_SIZE, partition.stop - at))
        found = find_record(chunk, at)
        if found is not None:
            return at + found if at + found < end else None
        if len(chunk) < _CHUNK_SIZE:
            return None
        at += len(chunk) - _HEAD_OVERLAP
    return None


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


@retry(
    retry=retry_if_exception_type(StoreError),
    stop=stop_after_delay(2.0),
    wait=wait_fixed(0.02),
    reraise=True,
)
def read_progress(store: str) -> dict[tuple[str, str], dict[int, int]]:
    """Return the committed offsets of a store: (group, topic) -> queue id -> next offset.

    Apache's broker writes the file in place, so for a moment it may be empty, and its copy from
    before the first offset is empty, too: what does not read is read again for two seconds.

    Raises:
        StoreError: when the file is there and says nothing that can be read.
    """
    folder = Path(store) / "config"
    trouble: Exception | None = None
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        try:
            table = fastjson.loads((folder / name).read_bytes())["offsetTable"]
            return {
                (group, topic): {int(queue): int(offset) for queue, offset in offsets.items()}
                for (topic, _, group), offsets in (
                    (key.partition("@"), offsets) for key, offsets in table.items()
                )
            }
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            trouble = error
    if trouble is not None:
        raise StoreError(f"{folder}/consumerOffset.json cannot be read: {trouble}")
    return {}
