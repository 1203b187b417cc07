"""The timer wheel: the entries of the timer log that are due in each slot.

The file has two weeks of slots. Each slot has the first and the last entry of its chain. A slot is
valid only for the time that is stored in it; for any other time it is empty.

    time in units of the precision i64 | first position i64 | last position i64 | count i32 | 0 i32

Changes stay in memory until a checkpoint. By then the entries are on the medium, so the file never
names an entry that a crash can remove.
Source: Apache RocketMQ `TimerWheel`, `Slot`.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from reliable_mq.broker_core.store.disk import Disk, DiskFile
from reliable_mq.errors import StoreCorrupt

PATH = "timerwheel"
SLOTS = 2 * 7 * 24 * 3600

_SLOT = struct.Struct(">qqqii")
_TIME = struct.Struct(">q24x")
_LOOK = 2048  # slots read at once


_Fields = tuple[int, int, int, int, int]  # as in the file


class Slot(NamedTuple):
    """A chain of entries: positions of the first and the last one, and the number of entries."""

    first: int
    last: int
    waiting: int


EMPTY = Slot(-1, -1, 0)


class TimerWheel:
    """The slots by time.

    Args:
        disk: the store's folder; the file is created if it does not exist.
        precision_ms: duration of a slot, in milliseconds.

    Raises:
        StoreCorrupt: when the file has a wrong size.
    """

    def __init__(self, disk: Disk, precision_ms: int) -> None:
        size = disk.size_of(PATH)
        if size not in (-1, 0, SLOTS * _SLOT.size):
            raise StoreCorrupt(
                f"{PATH}: {size} bytes instead of {SLOTS * _SLOT.size}; restore it from a copy"
            )
        self._precision_ms = precision_ms
        self._file: DiskFile = disk.open(PATH, SLOTS * _SLOT.size)
        self._changed: dict[int, _Fields] = {}  # by slot number
        self._leaving: dict[int, _Fields] = {}  # slots that a checkpoint is writing

    def slot(self, slot_ms: int) -> Slot:
        """Return the slot of a time."""
        units = slot_ms // self._precision_ms
        time, first, last, count, _ = self._fields(units % SLOTS)
        return Slot(first, last, count) if time == units else EMPTY

    def _fields(self, number: int) -> _Fields:
        known = self._changed.get(number) or self._leaving.get(number)
        return known or _SLOT.unpack(self._file.read(number * _SLOT.size, _SLOT.size))

    def set_slot(self, slot_ms: int, slot: Slot) -> None:
        """Set the slot of a time; it replaces an older time with the same slot number."""
        units = slot_ms // self._precision_ms
        self._changed[units % SLOTS] = (units, *slot, 0)

    def link(self, slot_ms: int, position: int, change: int, last_position: int = -1) -> int:
        """Let the entry at a position be the last one of a slot; return that of the one before.

        Args:
            slot_ms: the time of the slot.
            position: in the timer log.
            change: in the number of entries that wait.
            last_position: of the last entry, if this one begins a chain of some. Default: alone.
        """
        units = slot_ms // self._precision_ms
        number = units % SLOTS
        time, first, last, count, _ = self._fields(number)
        if time != units:
            first, last, count = EMPTY
        first = position if first < 0 else first
        newest = position if last_position < 0 else last_position
        self._changed[number] = (units, first, newest, count + change, 0)
        return last

    def next_used(self, slot_ms: int, until_ms: int) -> int:
        """Return the first time from `slot_ms` on with a used slot, at most `until_ms`.

        Only a limited number of slots is checked, so the returned time may be unused.
        """
        units, until = slot_ms // self._precision_ms, until_ms // self._precision_ms
        number = units % SLOTS
        count = min(until - units, SLOTS - number, _LOOK)
        data = self._file.read(number * _SLOT.size, max(0, count) * _SLOT.size)
        for index, (time,) in enumerate(_TIME.iter_unpack(data)):
            place = number + index
            if time == units + index or place in self._changed or place in self._leaving:
                return (units + index) * self._precision_ms
        return min(units + max(0, count), until) * self._precision_ms

    def begin_checkpoint(self) -> Callable[[], None]:
        """Return the job that writes the changed slots; it may run in another thread."""
        leaving = self._leaving = {**self._leaving, **self._changed}
        self._changed = {}

        def work() -> None:
            if not leaving:
                return
            for at, parts in _runs({at: _SLOT.pack(*fields) for at, fields in leaving.items()}):
                self._file.write(at, parts)
            self._file.sync()
            self._leaving = {}

        return work

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _runs(slots: dict[int, bytes]) -> list[tuple[int, list[bytes]]]:
    """Return (position, slots) for each run of neighbouring slots, to write each run at once."""
    runs: list[tuple[int, list[bytes]]] = []
    last = -2
    for number in sorted(slots):
        if number == last + 1:
            runs[-1][1].append(slots[number])
        else:
            runs.append((number * _SLOT.size, [slots[number]]))
        last = number
    return runs
