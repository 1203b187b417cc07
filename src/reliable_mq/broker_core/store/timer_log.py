"""The timer log: one entry per timed message, in the order in which they were taken up.

An entry has the message's place in the commit log, and its slot of the wheel. The entries of one
slot are a chain: each has the position of the entry before it. Files have equal sizes and are named
by the position of their first byte. An entry never spans two files; a blank closes a file.

    size i32 = 52 | previous position i64 (-1: none) | magic i32 | taken up at i64 | slot's time
    less that i32 | log offset i64 | size i32 | hash of the real topic i32 | reserved i64

Apache writes 0 as `reserved` and never reads it. Here it is the due time of the message, to the
millisecond. An entry with 0 is Apache's; its due time is in the message.
Source: Apache RocketMQ `TimerLog`, `TimerMessageStore`.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from reliable_mq.broker_core.store.disk import Disk, DiskFile
from reliable_mq.errors import StoreCorrupt
from reliable_mq.wire.java_hash import topic_hash

FOLDER = "timerlog"
DEFAULT, ROLL, DELETE = 1, 2, 4  # bits of the magic

_ENTRY = struct.Struct(">iqiqiqiiq")
_BLANK = struct.Struct(">iqi")
_TIMES = struct.Struct(">qi")
_BLANK_MAGIC = 0xCBD43194 - (1 << 32)
_MAGIC_PLACE = 12
_PREVIOUS_PLACE, _TIMES_PLACE = 4, 16
_DELAY_MAX = 2**31 - 1  # 24.8 days, in milliseconds
SIZE = _ENTRY.size
_BLOCK = 64 * SIZE
"""So many bytes are read at once: neighbours are read one after another, in either direction."""


class TimerEntry(NamedTuple):
    """One timed message; times in milliseconds. `due_ms` is 0 when only the message has it."""

    previous: int
    magic: int
    taken_ms: int
    slot_ms: int
    commit_log_offset: int
    size: int
    topic_hash: int
    due_ms: int


class TimedPlace(Protocol):
    """Where a timed message is in the commit log, its real topic, and when it is due."""

    @property
    def place(self) -> int:
        """The log offset of its record."""

    @property
    def size(self) -> int:
        """The bytes of its record."""

    @property
    def topic(self) -> str:
        """Its real topic."""

    @property
    def due_ms(self) -> int:
        """When it is due."""


class TimerLog:
    """The files of the log. Entries from `start` to `end` exist; `flush` makes them readable.

    The caller must call `cut` first: before that, entries after `end` may be readable or damaged.

    Args:
        disk: the store's folder.
        file_size: bytes of one file.
        end: the position up to which the log is known to be on the medium; the rest may be lost.

    Raises:
        StoreCorrupt: when a file has a wrong size, or a file before `end` is missing in the middle.
    """

    def __init__(self, disk: Disk, file_size: int, end: int) -> None:
        self._disk = disk
        self._file_size = file_size
        self._files: dict[int, DiskFile] = {}  # by the position of the first byte
        self._unsynced: set[int] = set()
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self._block, self._block_at = b"", 0  # as read since the last write, and its position
        self.end = end
        self._load()
        self.start = min(self._files, default=0)

    def _load(self) -> None:
        names = [name for name in self._disk.names(FOLDER) if name.isdecimal() and len(name) == 20]
        for name in names:
            path = f"{FOLDER}/{name}"
            size = self._disk.size_of(path)
            if size == 0:
                continue  # the process died while it created this file
            if size != self._file_size:
                raise StoreCorrupt(
                    f"{path}: {size} bytes instead of {self._file_size}; "
                    "set mappedFileSizeTimerLog to its value when the file was written"
                )
            first = int(name)
            due = max(self._files) + self._file_size if self._files else min(first, self.end)
            if first == due:
                self._files[first] = self._disk.open(path, self._file_size)
            elif due >= self.end:
                self._disk.remove(path)  # a power loss removed the file before it
            else:
                raise StoreCorrupt(f"{path}: the file before it is missing; restore it from a copy")

    def _file(self, first: int) -> DiskFile:
        file = self._files.get(first)
        if file is None:
            file = self._disk.open(f"{FOLDER}/{first:020d}", self._file_size)
            self._files[first] = file
        return file

    def room(self) -> int:
        """Return the position of the next entry; the caller may then call `add`."""
        rest = self._file_size - self.end % self._file_size
        if rest < SIZE + _BLANK.size:
            self.flush()
            self._write(self.end, [_BLANK.pack(rest, 0, _BLANK_MAGIC)])
            self.end += rest
        return self.end

    @property
    def is_at_last(self) -> bool:
        """Whether the entry at the position from `room` is the last one of its file."""
        return self._file_size - self.end % self._file_size < 2 * SIZE + _BLANK.size

    def add(self, entry: TimerEntry, previous: int) -> None:
        """Add an entry at the position from `room`; `previous` is that of the one before it."""
        _, magic, taken_ms, slot_ms, place, size, hashed, due_ms = entry
        times = _times(taken_ms, slot_ms)
        self._gather(_ENTRY.pack(SIZE, previous, magic, *times, place, size, hashed, due_ms))

    @property
    def run_max(self) -> int:
        """How many entries fit into the file of the position from `room`."""
        return (self._file_size - self.end % self._file_size - _BLANK.size) // SIZE

    def add_run(
        self, messages: Iterable[TimedPlace], previous: int, slot_ms: int, taken_ms: int
    ) -> None:
        """Add entries of one slot, each with the one before it as previous; see `add`."""
        parts, position, pack = [], self.end, _ENTRY.pack
        times = _times(taken_ms, slot_ms)
        for each in messages:
            hashed, due_ms = topic_hash(each.topic), each.due_ms
            parts.append(
                pack(SIZE, previous, DEFAULT, *times, each.place, each.size, hashed, due_ms)
            )
            previous = position
            position += SIZE
        self._gather(b"".join(parts))

    def _gather(self, data: bytes) -> None:
        self._gathered.append(data)
        self._gathered_size += len(data)
        self.end += len(data)

    @property
    def is_flushed(self) -> bool:
        """Whether all appended entries are written."""
        return not self._gathered

    def flush(self) -> None:
        """Write the appended entries in one write; all of them are in one file.

        Raises:
            StoreError, OSError: when there is no room; the caller may retry.
        """
        if not self._gathered:
            return
        begin = self.end - self._gathered_size
        self._write(begin, self._gathered)
        self._gathered = []
        self._gathered_size = 0

    def _write(self, position: int, parts: list[bytes]) -> None:
        at = position % self._file_size
        self._block = b""
        self._file(position - at).write(at, parts)
        self._unsynced.add(position - at)

    def read(self, position: int) -> TimerEntry | None:
        """Return the entry at a position, or None without an entry."""
        place = position - self._block_at
        if not 0 <= place <= len(self._block) - SIZE:
            place = self._read_block(position)
        if position < self.start or place > len(self._block) - SIZE:
            return None
        size, previous, magic, taken_ms, delay_ms, *rest = _ENTRY.unpack_from(self._block, place)
        if size != SIZE or not 0 < magic <= 15:
            return None
        return TimerEntry(previous, magic, taken_ms, taken_ms + delay_ms, *rest)

    def _read_block(self, position: int) -> int:
        """Read the block with an entry; return the place of the entry in it."""
        at = position % self._file_size
        file, place = self._files.get(position - at), at % _BLOCK
        if place > _BLOCK - SIZE:  # no entry of ours begins here
            place = 0
        self._block_at = position - place
        self._block = bytes(file.read(at - place, _BLOCK)) if file else b""
        return place

    def after(self, position: int) -> int:
        """Return the position after the entry or blank at `position`.

        Without an entry or a blank the result is `position`.
        """
        at = position % self._file_size
        file = self._files.get(position - at)
        if file is None:
            return position
        if int.from_bytes(file.read(at + _MAGIC_PLACE, 4), "big", signed=True) == _BLANK_MAGIC:
            return position - at + self._file_size
        return position + SIZE if self.read(position) else position

    def relink(self, position: int, previous: int) -> None:
        """Set the previous entry of the entry at `position` in its chain."""
        self._write(position + _PREVIOUS_PLACE, [previous.to_bytes(8, "big", signed=True)])

    def retire(self, position: int, slot_ms: int) -> None:
        """Move the entry at `position` to another slot, such as a past one."""
        entry = self.read(position)
        if entry:
            times = _TIMES.pack(*_times(entry.taken_ms, slot_ms))
            self._write(position + _TIMES_PLACE, [times])

    def last(self) -> TimerEntry | None:
        """Return the entry before `end`, or None without entries."""
        first = (self.end - 1) // self._file_size * self._file_size
        most = (self._file_size - _BLANK.size) // SIZE * SIZE  # a blank follows
        return self.read(first + min(self.end - first, most) - SIZE)

    def cut(self) -> None:
        """Remove everything after `end`."""
        end, self._block = self.end, b""
        keep = end - end % self._file_size
        for first in sorted(self._files, reverse=True):
            if first > keep:
                self._files.pop(first).close()
                self._unsynced.discard(first)
                self._disk.remove(f"{FOLDER}/{first:020d}")
        if keep in self._files and not self._files[keep].clear(end - keep):
            self._unsynced.add(keep)

    def remove_before(self, log_start: int) -> None:
        """Remove files whose messages are all before `log_start`, the start of the commit log."""
        for first in sorted(self._files)[:-1]:
            last = (self._file_size - _BLANK.size - SIZE) // SIZE * SIZE
            entry = self.read(first + last)
            if entry is None or entry.commit_log_offset >= log_start:
                return
            self._files.pop(first).close()
            self._unsynced.discard(first)
            self._disk.remove(f"{FOLDER}/{first:020d}")
            self.start = min(self._files)

    def take_unsynced(self) -> list[DiskFile]:
        """Return the files that must be synced before the entries are durable."""
        unsynced = [self._files[first] for first in sorted(self._unsynced)]
        self._unsynced.clear()
        return unsynced

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def slot_of(due_ms: int, precision_ms: int) -> int:
    """Return the slot, of so many milliseconds, in which a message is due."""
    return (due_ms - 1) // precision_ms * precision_ms


def _times(taken_ms: int, slot_ms: int) -> tuple[int, int]:
    """Return the fields of both times; of a slot that is far away, it was taken up nearer to it.

    Apache's broker casts the difference to an `int`, and reads another slot then.
    """
    taken_ms = max(slot_ms - _DELAY_MAX, min(taken_ms, slot_ms + _DELAY_MAX))
    return taken_ms, slot_ms - taken_ms
