"""A consume queue: where in the commit log the n-th message of one queue is.

Units of 20 bytes, `commit-log offset i64 | size i32 | tags code i64`, in files of 300,000 units
named by the position of their first byte. Unit n is message n of the queue. A unit with size 0 was
not written yet. The files can be built from the log again, so they need no sync of their own
before an acknowledgement.

Invariant Q1: units are contiguous from `first` to `end`, and their log offsets increase.
Source: Apache RocketMQ `ConsumeQueue`.
"""

import struct
from typing import NamedTuple

from reliable_mq.broker_core.store.disk import Disk, DiskFile
from reliable_mq.limits import CONSUME_QUEUE_FILE_SIZE, CONSUME_QUEUE_UNIT_SIZE

FOLDER = "consumequeue"

_UNIT = struct.Struct(">qiq")
_BLANK_UNIT = _UNIT.pack(0, 0x7FFFFFFF, 0)  # before the first unit of a queue that begins later


class Unit(NamedTuple):
    """Where one message is, and the hash of its tag."""

    commit_log_offset: int
    size: int
    tags_code: int


class ConsumeQueue:
    """The units of one queue of one topic."""

    __slots__ = ("_dirty", "_disk", "_files", "_folder", "_per_file", "end", "first", "log_end")

    def __init__(
        self, disk: Disk, topic: str, queue_id: int, file_size: int = CONSUME_QUEUE_FILE_SIZE
    ) -> None:
        self._disk = disk
        self._folder = f"{FOLDER}/{topic}/{queue_id}"
        self._per_file = file_size // CONSUME_QUEUE_UNIT_SIZE
        self._files: dict[int, DiskFile] = {}
        self._dirty: set[int] = set()
        self.first = 0
        self.end = 0
        self.log_end = 0  # the log offset up to which this queue knows the log
        self._load()

    def _load(self) -> None:
        size = self._per_file * CONSUME_QUEUE_UNIT_SIZE
        for name in self._disk.names(self._folder):
            if name.isdigit():
                number = int(name) // size
                self._files[number] = self._disk.open(f"{self._folder}/{name}", size)
        if not self._files:
            return
        numbers = sorted(self._files)
        self.first = numbers[0] * self._per_file
        self.end = numbers[-1] * self._per_file
        for number in numbers:  # the first file that is not full holds the end
            count = self._count_units(self._files[number])
            self.end = number * self._per_file + count
            if count < self._per_file:
                break
        while self.first < self.end and self._is_blank(self.first):
            self.first += 1
        last = self.unit(self.end - 1) if self.end > self.first else None
        self.log_end = last.commit_log_offset + last.size if last else 0

    def _is_blank(self, index: int) -> bool:
        number, at = self._place(index)
        return self._files[number].read(at, CONSUME_QUEUE_UNIT_SIZE) == _BLANK_UNIT

    def _count_units(self, file: DiskFile) -> int:
        """Return how many units are written: units are appended, so a binary search finds it."""
        low, high = 0, self._per_file
        while low < high:
            middle = (low + high) // 2
            unit = _UNIT.unpack(file.read(middle * CONSUME_QUEUE_UNIT_SIZE, _UNIT.size))
            if unit[0] >= 0 and unit[1] > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def _place(self, index: int) -> tuple[int, int]:
        number, in_file = divmod(index, self._per_file)
        return number, in_file * CONSUME_QUEUE_UNIT_SIZE

    def _file(self, number: int) -> DiskFile:
        file = self._files.get(number)
        if file is None:
            size = self._per_file * CONSUME_QUEUE_UNIT_SIZE
            file = self._disk.open(f"{self._folder}/{number * size:020d}", size)
            self._files[number] = file
        return file

    def put(self, index: int, unit: Unit) -> bool:
        """Add the unit of message `index`; return False when the queue has it already.

        A queue that is empty may begin at any index: the units before it in its first file are
        filled as blank.
        """
        if index < self.end:
            return False
        if index > self.end:
            self._begin_at(index)
        number, at = self._place(index)
        self._file(number).write(at, (_UNIT.pack(*unit),))
        self._dirty.add(number)
        self.end = index + 1
        self.log_end = unit.commit_log_offset + unit.size
        return True

    def _begin_at(self, index: int) -> None:
        number, at = self._place(index)
        start = max(self.end, number * self._per_file)
        blanks = index - start
        self._file(number).write(at - blanks * CONSUME_QUEUE_UNIT_SIZE, (_BLANK_UNIT * blanks,))
        if self.end == self.first:
            self.first = index

    def unit(self, index: int) -> Unit:
        """Return the unit of message `index`, which must be in `first` .. `end` - 1."""
        number, at = self._place(index)
        return Unit(*_UNIT.unpack(self._files[number].read(at, CONSUME_QUEUE_UNIT_SIZE)))

    def units(self, index: int, count: int) -> list[Unit]:
        """Return up to `count` units from message `index`, as many as one file holds."""
        number, at = self._place(index)
        file = self._files.get(number)
        count = min(count, self.end - index, self._per_file - index % self._per_file)
        if file is None or count <= 0:
            return []
        return [Unit(*unit) for unit in _UNIT.iter_unpack(file.read(at, count * _UNIT.size))]

    def truncate(self, log_end: int) -> None:
        """Forget the units of records at or after `log_end`: recovery builds them again."""
        while self.end > self.first and self.unit(self.end - 1).commit_log_offset >= log_end:
            self.end -= 1
            number, at = self._place(self.end)
            self._files[number].write(at, (b"\0" * CONSUME_QUEUE_UNIT_SIZE,))
            self._dirty.add(number)
        last = self.unit(self.end - 1) if self.end > self.first else None
        self.log_end = last.commit_log_offset + last.size if last else 0

    def sync(self) -> None:
        """Return when all units are on the medium."""
        for number in self._dirty:
            self._files[number].sync()
        self._dirty.clear()

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files.values():
            file.close()
