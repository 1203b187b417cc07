"""The timer wheel: which entries of the timer log are due in which second.

Two weeks of slots in one file, and each slot knows the first and the last entry of its chain. A
slot belongs to the time that it says; said otherwise, it is empty.

    time in units of the precision i64 | first position i64 | last position i64 | count i32 | 0 i32

What changes is kept in memory until a checkpoint: by then the entries are on the medium, so that
the file never names one that a crash can take away.
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


class Slot(NamedTuple):
    """A chain: the positions of its first and last entry, and how many wait."""

    first: int
    last: int
    waiting: int


EMPTY = Slot(-1, -1, 0)


class TimerWheel:
    """The slots by time.

    Args:
        disk: the store's folder; the file is made when it is not there.
        precision_ms: how long a slot lasts.

    Raises:
        StoreCorrupt: when the file has another size.
    """

    def __init__(self, disk: Disk, precision_ms: int) -> None:
        size = disk.size_of(PATH)
        if size not in (-1, 0, SLOTS * _SLOT.size):
            raise StoreCorrupt(
                f"{PATH}: {size} bytes instead of {SLOTS * _SLOT.size}; restore it from a copy"
            )
        self._precision_ms = precision_ms
        self._file: DiskFile = disk.open(PATH, SLOTS * _SLOT.size)
        self._changed: dict[int, bytes] = {}  # by slot number
        self._leaving: dict[int, bytes] = {}  # what a checkpoint is writing

    def slot(self, slot_ms: int) -> Slot:
        """Return the slot of a time."""
        units = slot_ms // self._precision_ms
        number = units % SLOTS
        data = self._changed.get(number) or self._leaving.get(number)
        at = number * _SLOT.size
        time, first, last, count, _ = _SLOT.unpack(data or self._file.read(at, _SLOT.size))
        return Slot(first, last, count) if time == units else EMPTY

    def put(self, slot_ms: int, slot: Slot) -> None:
        """Set the slot of a time; an older time that had the same place is forgotten."""
        units = slot_ms // self._precision_ms
        self._changed[units % SLOTS] = _SLOT.pack(units, *slot, 0)

    def next_used(self, slot_ms: int, until_ms: int) -> int:
        """Return the first time from `slot_ms` on whose slot is used, at most `until_ms`.

        At most a fixed number of slots is looked at: the time that is returned may be unused.
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
        """Return the work of writing what changed; it may run in another thread."""
        leaving = self._leaving = {**self._leaving, **self._changed}
        self._changed = {}

        def work() -> None:
            if not leaving:
                return
            for at, parts in _runs(leaving):
                self._file.write(at, parts)
            self._file.sync()
            self._leaving = {}

        return work

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _runs(slots: dict[int, bytes]) -> list[tuple[int, list[bytes]]]:
    """Return (place, slots one after another) of neighbours, to be written at once."""
    runs: list[tuple[int, list[bytes]]] = []
    last = -2
    for number in sorted(slots):
        if number == last + 1:
            runs[-1][1].append(slots[number])
        else:
            runs.append((number * _SLOT.size, [slots[number]]))
        last = number
    return runs
