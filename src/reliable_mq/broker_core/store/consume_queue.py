"""A consume queue: the place in the commit log of each message of one queue.

Units of 20 bytes, `commit-log offset i64 | size i32 | tags code i64`, are in files of 300,000
units. A file is named by the position of its first byte. Unit n is message n of the queue. A unit
of size 0 is not written yet. The files can be rebuilt from the log, so an acknowledgement needs no
sync of them. For the same reason unsynced units are never trusted after a crash: the system writes
pages in any order, so good units may follow a hole.

Invariant Q1: units are contiguous from `first` to `end`, and their log offsets increase.
Source: Apache RocketMQ `ConsumeQueue`.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Collection
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from reliable_mq.broker_core.store.deletions import FOLDER, QueueBegin
from reliable_mq.broker_core.store.disk import Disk, DiskFile, is_out_of_room
from reliable_mq.broker_core.store.lanes import Arrivals
from reliable_mq.broker_core.store.progress import SeenExtent
from reliable_mq.errors import InvariantBroken, StoreCorrupt, StoreError
from reliable_mq.limits import CONSUME_QUEUE_FILE_SIZE as SIZE
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE, FRAME_SIZE_MAX

_UNIT = struct.Struct(">qiq")
pack_unit = _UNIT.pack  # commit-log offset, size, tags code
_GATHERED_MAX = 512
_0 = QueueBegin()
BLANK_SIZE = 0x7FFFFFFF
_BLANK_UNIT = _UNIT.pack(0, BLANK_SIZE, 0)  # fills a file before the first unit of its queue


class QueueUnit(NamedTuple):
    """The place and size of a message in the log, and the hash of its tag."""

    commit_log_offset: int
    size: int
    tags_code: int


class RecordPlaces(NamedTuple):
    """Log offsets and sizes of some records."""

    begins: tuple[int, ...]
    sizes: tuple[int, ...]


@lru_cache(maxsize=64)
def _places_of(count: int) -> struct.Struct:
    """Return a struct that reads log offset and size of `count` units."""
    return struct.Struct(">" + "qi8x" * count)


class ConsumeQueue:
    """The units of one queue of one topic.

    `first` and `end` are message numbers. `last_log_offset` is the log offset of the last unit's
    record (-1 without one); `log_end` is its end. `begin` is 0, or the next message number at the
    time when the topic was deleted.
    """

    __slots__ = (
        *("_counted", "_dirty", "_disk", "_folder", "_gathered", "_looked_at", "_per_file"),
        *("_used", "begin", "end", "first", "last_log_offset", "log_end", "queue_id", "size_put"),
        "topic",
    )

    def __init__(
        self,
        disk: Disk,
        topic: str,
        queue_id: int,
        file_size: int = SIZE,
        origin: QueueBegin = _0,
        seen: SeenExtent | None = None,
    ) -> None:
        """Open the existing files that are not stale, or with `seen` none yet; nothing is changed.

        Raises:
            StoreCorrupt: when a file has a wrong size.
        """
        self._disk = disk
        self.topic = topic
        self.queue_id = queue_id
        self.size_put = 0  # bytes of records since the last `take_growth`
        self._folder = f"{FOLDER}/{topic}/{queue_id}"
        self._per_file = file_size // CONSUME_QUEUE_UNIT_SIZE
        self._used: dict[int, DiskFile] = {}
        self._looked_at = -1  # the file that a look has shown, before its first use
        self._dirty: dict[int, None] = {}  # files with unsynced units; smaller than an empty set
        self._gathered: list[bytes] = []  # the last units before `end`, not written yet
        self.begin = self.first = self.end = origin.begin
        self.last_log_offset = -1
        self.log_end = 0
        if seen is None:
            self._load(origin.stale)
        else:
            self.first, self.end, self.last_log_offset, self.log_end = seen
            self._looked_at = self.first // self._per_file
        self._counted = self.end

    @property
    def _files(self) -> dict[int, DiskFile]:
        """The files, by their numbers."""
        number = self._looked_at
        if number >= 0:
            self._used[number] = self._disk.known(self.path_of_file(number), self._file_size)
            self._looked_at = -1
        return self._used

    def _load(self, stale: Collection[str]) -> None:
        for name in self._disk.names(self._folder):
            path = f"{self._folder}/{name}"
            size = self._disk.size_of(path)
            if not (name.isdecimal() and len(name) == 20) or size == 0 or name in stale:
                continue
            if size != self._file_size:
                raise StoreCorrupt(
                    f"{path}: {size} bytes instead of {self._file_size}; "
                    "set mappedFileSizeConsumeQueue to its value when the file was written"
                )
            self._files[int(name) // self._file_size] = self._disk.open(path, self._file_size)
        if not self._files:
            return
        self.first = min(self._files) * self._per_file
        self.end = (max(self._files) + 1) * self._per_file
        if self.is_contiguous:
            self.end = self._first_that(lambda unit: unit.commit_log_offset < 0 or not unit.size)
            self.first = self._first_that(lambda unit: unit != _BLANK)
            if self.end > self.first and self.unit(self.end - 1).size > FRAME_SIZE_MAX:
                self.first = self.end  # there are only blank units, and a crash took some of them
            self._set_end(self.end)

    @property
    def _file_size(self) -> int:
        return self._per_file * CONSUME_QUEUE_UNIT_SIZE

    @property
    def is_contiguous(self) -> bool:
        """Whether no file is missing between the first one and the last one."""
        return not self._files or len(self._files) == max(self._files) - min(self._files) + 1

    def is_filled(self, end: int) -> bool:
        """Whether each file has units up to message `end`: its first and last unit are checked."""
        edges = {self.first, end - 1}
        for index in range(self.first - self.first % self._per_file, end, self._per_file):
            edges |= {index, index - 1}
        return all(self.unit(edge).size > 0 for edge in edges if self.first <= edge < end)

    def invariants(self) -> None:
        """Check Q1 as far as this is possible without reading."""
        waiting = len(self._gathered)
        if not (0 <= self.first <= self.end - waiting <= self.end):
            raise InvariantBroken(f"Q1: {self._folder}: {self.first} to {self.end}, {waiting} wait")

    def _first_that(self, is_beyond: Callable[[QueueUnit], bool]) -> int:
        """Return the first unit from `first` to `end` for which `is_beyond` is true; bisection."""
        some = range(self.first, self.end)
        return self.first + bisect_left(some, x=True, key=lambda at: is_beyond(self.unit(at)))

    def index_of(self, log_offset: int) -> int:
        """Return the number of the first unit whose record is at or after `log_offset`.

        Units from a hole on count as after it; see the head of the module.
        """
        return self._first_that(lambda unit: unit.commit_log_offset >= log_offset or unit.size <= 0)

    def _set_end(self, end: int) -> None:
        self.end = end
        last = self.unit(end - 1) if end > self.first else QueueUnit(-1, 1, 0)
        self.last_log_offset = last.commit_log_offset
        self.log_end = last.commit_log_offset + last.size

    def _place(self, index: int) -> tuple[int, int]:
        number, in_file = divmod(index, self._per_file)
        return number, in_file * CONSUME_QUEUE_UNIT_SIZE

    def path_of_file(self, number: int) -> str:
        """Return the path of the file with this number."""
        return f"{self._folder}/{number * self._file_size:020d}"

    def _file(self, number: int) -> DiskFile:
        if number not in self._files:
            self._files[number] = self.make_file(number)
        return self._files[number]

    def make_file(self, number: int) -> DiskFile:
        """Create a file, perhaps in another thread; `adopt` adds it to the queue."""
        return self._disk.open(self.path_of_file(number), self._file_size)

    @property
    def missing(self) -> int | None:
        """The number of the file that the next `flush` must create first; None: it has it."""
        number = (self.end - len(self._gathered)) // self._per_file
        return number if self._gathered and number not in self._files else None

    def adopt(self, number: int, file: DiskFile) -> None:
        """Add the file that is `missing`."""
        self._files[number] = file

    def append_units(self, arrivals: Arrivals) -> bool:
        """Add units; the first must be the next message. They are readable; `flush` writes them.

        An empty queue may begin at any message. Return whether enough units wait for a write.
        """
        if arrivals.first != self.end:
            self._begin_at(arrivals.first)
        self._gathered += arrivals.units
        self.end += len(arrivals.units)
        self.last_log_offset = arrivals.last_log_offset
        self.log_end = arrivals.log_end
        self.size_put += arrivals.size
        return len(self._gathered) >= _GATHERED_MAX

    def take_growth(self) -> tuple[int, int]:
        """Return the number of messages since the last call, and their bytes."""
        count, size = self.end - self._counted, self.size_put
        self._counted, self.size_put = self.end, 0
        return count, size

    def extend(self, index: int, units: bytes) -> None:
        """Add and write many units at once, from message `index` on.

        Units for which the disk has no room wait for `flush`, as with `append_units`; see
        `is_waiting`.
        """
        if index != self.end:
            self._begin_at(index)
        while units:
            number, at = self._place(index)
            group = units[: self._file_size - at]
            try:
                self._file(number).write(at, (group,))
            except (OSError, StoreError) as error:
                if not is_out_of_room(error):
                    raise
                break
            self._dirty[number] = None
            index += len(group) // CONSUME_QUEUE_UNIT_SIZE
            units = units[len(group) :]
        self._gathered = [
            units[at : at + CONSUME_QUEUE_UNIT_SIZE]
            for at in range(0, len(units), CONSUME_QUEUE_UNIT_SIZE)
        ]
        self._set_end(index + len(self._gathered))

    def restart_at(self, number: int) -> list[tuple[DiskFile, str]]:
        """Forget all messages; continue at `number`, or at the next begin of a file; see `trim`."""
        files = self.take_files()
        self._gathered = []
        self.begin = self.first = -(-number // self._per_file) * self._per_file
        self._set_end(self.begin)
        self._counted, self.size_put = self.end, 0
        return files

    @property
    def is_waiting(self) -> bool:
        """Whether some units are not written yet."""
        return bool(self._gathered)

    def _begin_at(self, index: int) -> None:
        """Let an empty queue begin at `index`; blank units fill its first file before that.

        The file is synced with its first unit.
        """
        if self.end > self.first or index < self.end:
            raise InvariantBroken(f"Q1: {self._folder}: unit {index} after {self.end - 1}")
        number, at = self._place(index)
        self._file(number).write(0, (_BLANK_UNIT * (at // CONSUME_QUEUE_UNIT_SIZE),))
        self.first = self.end = index

    def flush(self) -> None:
        """Write the unwritten units, one write per file.

        Raises:
            OSError, StoreError: when the disk fails. The units stay readable, for the next call.
        """
        units = self._gathered
        index = self.end - len(units)
        while units:
            number, at = self._place(index)
            group = units[: self._per_file - index % self._per_file]
            self._file(number).write(at, (b"".join(group),))
            self._dirty[number] = None
            index += len(group)
            units = units[len(group) :]
        self._gathered = []
        self.invariants()

    def unit(self, index: int) -> QueueUnit:
        """Return the unit of message `index`, which must be in `first` .. `end` - 1."""
        if self._gathered and index >= self.end - len(self._gathered):
            return QueueUnit(*_UNIT.unpack(self._gathered[index - self.end]))
        number, at = self._place(index)
        return QueueUnit(*_UNIT.unpack(self._files[number].copy(at, CONSUME_QUEUE_UNIT_SIZE)))

    def path_of(self, index: int) -> str:
        """Return the path of the file that holds the unit of message `index`."""
        return self.path_of_file(index // self._per_file)

    def replace_unit(self, index: int, unit: QueueUnit) -> None:
        """Replace the unit of a message."""
        number, at = self._place(index)
        self._file(number).write(at, (pack_unit(*unit),))
        self._dirty[number] = None
        self._set_end(self.end)

    def units(self, index: int, count: int) -> list[QueueUnit]:
        """Return up to `count` units from message `index` on, but only from one file."""
        return [QueueUnit(*unit) for unit in _UNIT.iter_unpack(self._packed(index, count))]

    def places(self, index: int, count: int) -> RecordPlaces | None:
        """Return the places of `units` without a step per unit; None without units."""
        packed = self._packed(index, count)
        if not packed:
            return None
        fields = _places_of(len(packed) // CONSUME_QUEUE_UNIT_SIZE).unpack(packed)
        return RecordPlaces(fields[::2], fields[1::2])

    def _packed(self, index: int, count: int) -> bytes:
        """Return the bytes of units, including unwritten ones."""
        number, in_file = divmod(index, self._per_file)
        count = min(count, self._per_file - in_file)
        written_end = self.end - len(self._gathered)
        written = min(count, written_end - index)
        packed = b""
        if written > 0:
            file = self._files.get(number)
            if file is None:
                return b""
            packed = file.copy(in_file * CONSUME_QUEUE_UNIT_SIZE, written * CONSUME_QUEUE_UNIT_SIZE)
        if written < count:
            begin = max(index - written_end, 0)
            packed += b"".join(self._gathered[begin : index + count - written_end])
        return packed

    def cut(self, end: int) -> None:
        """Forget the units from message `end` on, and clear the rest of the files."""
        keep, at = self._place(end)
        for number in sorted(self._files, reverse=True):
            if number > keep or (number == keep and at == 0 and number > min(self._files)):
                self._files.pop(number).close()
                self._dirty.pop(number, None)
                self._disk.remove(self.path_of_file(number))
        if keep in self._files and not self._files[keep].clear(at):
            self._dirty[keep] = None
        self._set_end(end)

    def trim(self, log_start: int) -> list[tuple[DiskFile, str]]:
        """Let the queue begin with its first record at or after `log_start`.

        Return the files with only older units; the caller closes and removes them, perhaps in
        another thread. The last file stays, because it holds the next message number.
        """
        if (
            self.first == self.end
            or not self._files
            or self.unit(self.first).commit_log_offset >= log_start
        ):
            return []
        self.first = self.index_of(log_start)
        kept = min(self.first // self._per_file, max(self._files))
        gone = [number for number in sorted(self._files) if number < kept]
        for number in gone:
            self._dirty.pop(number, None)
        return [(self._files.pop(number), self.path_of_file(number)) for number in gone]

    def take_files(self) -> list[tuple[DiskFile, str]]:
        """Forget all files; return them with their paths, as `trim` does."""
        files = [(file, self.path_of_file(number)) for number, file in self._files.items()]
        self._used = {}
        self._dirty.clear()
        return files

    def reset(self) -> None:
        """Forget everything, so that the queue can be rebuilt from the log."""
        for file, path in sorted(self.take_files(), key=itemgetter(1), reverse=True):
            file.close()
            self._disk.remove(path)
        self.first = 0
        self._set_end(0)

    def take_unsynced(self) -> list[DiskFile]:
        """Return the files that must be synced before the units are durable."""
        unsynced = [self._files[number] for number in sorted(self._dirty)]
        self._dirty.clear()
        return unsynced

    def close(self) -> None:
        """Close the files."""
        for file in self._used.values():
            file.close()


_BLANK = QueueUnit(*_UNIT.unpack(_BLANK_UNIT))
