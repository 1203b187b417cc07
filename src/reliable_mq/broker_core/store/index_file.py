"""One index file: the messages of the log with a key, newest first.

    0 begin time i64    16 begin log offset i64    32 slots in use i32
    8 end time i64      24 end log offset i64      36 next entry i32, from 1
then the slots, i32 each: the newest entry of the keys with hash % slots, 0 for none
then the entries, 20 bytes each, entry 0 unused:
    key hash i32 | log offset i64 | seconds since the begin time i32 | entry before it i32

Times in milliseconds; offsets are log offsets. Entries are written first, then the head, then the
slots. If the process dies in between, the head may not count some entries, or no slot names them;
`relink_slots` links them. Source: Apache RocketMQ `IndexFile`, `IndexHeader`.
"""

import struct
from collections.abc import Iterator, Sequence

from reliable_mq.broker_core.store.disk import DiskFile
from reliable_mq.broker_core.store.index_entries import IndexColumns
from reliable_mq.errors import InvariantBroken

HEAD_SIZE = 40
_SLOT_SIZE = 4
_HEAD = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")
_SECONDS_MAX = 0x7FFFFFFF
MENDED_MAX = 65_536  # more entries than one `append_entries` can write

_FIRST_SLOT = HEAD_SIZE // _SLOT_SIZE  # index among the 4-byte numbers of the file


def file_size(slots: int, capacity: int) -> int:
    """Return the size of a file for `capacity` entries, including the unused one."""
    return HEAD_SIZE + slots * _SLOT_SIZE + capacity * _ENTRY.size


def _packed(hashes: list[int], offsets: list[int], seconds: list[int], before: list[int]) -> bytes:
    """Return entries. Each column is packed by one call, and then spread over the entries."""
    count = len(hashes)
    entries = bytearray(count * _ENTRY.size)
    numbers = memoryview(entries).cast("i")
    width = len(numbers) // count
    places = memoryview(struct.pack(f">{count}q", *offsets)).cast("i")
    numbers[1::width], numbers[2::width] = places[::2], places[1::2]
    for at, column in (0, hashes), (3, seconds), (4, before):
        numbers[at::width] = memoryview(struct.pack(f">{count}i", *column)).cast("i")
    return bytes(entries)


class IndexFile:
    """The entries of one file.

    Invariant I1: 1 <= next entry <= capacity; an entry's predecessor in its chain is before it.
    """

    def __init__(self, file: DiskFile, slots: int, capacity: int) -> None:
        """Read the head.

        Raises:
            OSError: when the medium has no room for the slots.
        """
        self._file = file
        self._slots = slots
        self._capacity = capacity
        file.reserve(HEAD_SIZE + slots * _SLOT_SIZE)
        head: tuple[int, int, int, int, int, int] = _HEAD.unpack(file.copy(0, HEAD_SIZE))
        self.begin_time_ms, self.end_time_ms, self._begin_offset, self.end_offset = head[:4]
        self._slots_used = head[4]
        self.next = max(head[5], 1)
        self.is_synced = True

    def invariants(self) -> None:
        """Check I1 as far as this is possible without reading."""
        if not self.is_sound:
            raise InvariantBroken(f"I1: next entry {self.next} of {self._capacity}")

    @property
    def is_sound(self) -> bool:
        """Whether the head is plausible; entries are not read."""
        return 1 <= self.next <= self._capacity

    @property
    def is_full(self) -> bool:
        """Whether another file must follow."""
        return self.next >= self._capacity

    @property
    def last_offset(self) -> int:
        """The log offset of the last entry's record; -1 without entries."""
        return self._entry(self.next - 1)[1] if self.next > 1 else -1

    def count_of(self, offset: int) -> int:
        """Return how many of the last entries are those of one record."""
        number = self.next
        while number > 1 and self._entry(number - 1)[1] == offset:
            number -= 1
        return self.next - number

    def append_entries(self, entries: IndexColumns) -> int:
        """Add entries while there is room; return their number."""
        room = self._capacity - self.next
        hashes, offsets, times_ms = entries
        if len(hashes) > room:
            hashes, offsets, times_ms = (column[:room] for column in entries)
        if not hashes:
            return 0
        first = self.next
        if first == 1:
            self._begin_offset, self.begin_time_ms = offsets[0], times_ms[0]
        slots, file = self._slots, self._file
        places = [_FIRST_SLOT + key_hash % slots for key_hash in hashes]
        numbers: Sequence[int] = range(first, first + len(places))
        if len(set(places)) == len(places):  # each has a slot of its own
            before = self._heads(places)
            newly_used = before.count(0)
        else:
            distinct = list(dict.fromkeys(places))
            found = self._heads(distinct)
            newly_used, before = found.count(0), []
            heads = dict(zip(distinct, found, strict=True))
            for number, place in zip(numbers, places, strict=True):
                before.append(heads[place])
                heads[place] = number
            places, numbers = distinct, list(heads.values())
        self.is_synced = False
        packed = _packed(hashes, offsets, self._seconds(times_ms), before)
        file.write(self._entry_place(first), (packed,))
        self.next = first + len(hashes)
        self._slots_used += newly_used
        self.end_offset, self.end_time_ms = offsets[-1], times_ms[-1]
        self._write_head()
        file.put_ints(places, numbers)
        self.invariants()
        return len(hashes)

    def _heads(self, places: list[int]) -> list[int]:
        """Return the newest entry of each of these slots; 0 without one."""
        found = self._file.ints(places)
        if min(found) < 0 or max(found) >= self.next:
            found = [head if 0 < head < self.next else 0 for head in found]
        return found

    def _seconds(self, times_ms: list[int]) -> list[int]:
        """Return the seconds since the begin time, the unit of entries."""
        begin = self.begin_time_ms

        def seconds(time_ms: int) -> int:
            return min(max(time_ms - begin, 0) // 1000, _SECONDS_MAX)

        distinct = set(times_ms)
        low, high = seconds(min(distinct)), seconds(max(distinct))
        if low == high:
            return [low] * len(times_ms)
        return [seconds(time_ms) for time_ms in times_ms]

    def _write_head(self) -> None:
        head = _HEAD.pack(
            self.begin_time_ms,
            self.end_time_ms,
            self._begin_offset,
            self.end_offset,
            self._slots_used,
            self.next,
        )
        self._file.write(0, (head,))

    def relink_slots(self) -> None:
        """Link the entries of the last `append_entries`: their slot names the newest one again."""
        begin = max(1, self.next - MENDED_MAX)
        newest: dict[int, int] = {}
        for number, (key_hash, *_rest) in enumerate(self._entries(begin, self.next), begin):
            newest[_FIRST_SLOT + key_hash % self._slots] = number
        heads = self._file.ints(list(newest))
        late = {
            place: number
            for (place, number), head in zip(newest.items(), heads, strict=True)
            if head < number or head >= self.next
        }
        if late:
            self.is_synced = False
            self._file.put_ints(list(late), list(late.values()))

    def has_time(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may have messages of a time span."""
        return begin_ms <= self.end_time_ms and end_ms >= self.begin_time_ms

    def select(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the log offsets with a hash, newest first, within a time span (inclusive).

        The time of an entry has a resolution of one second, as in Apache's files.
        """
        number = self._file.ints([_FIRST_SLOT + key_hash % self._slots])[0]
        while 0 < number < self.next:
            own_hash, offset, seconds, before = self._entry(number)
            time_ms = self.begin_time_ms + seconds * 1000
            if seconds < 0:
                return
            if own_hash == key_hash and begin_ms <= time_ms <= end_ms:
                yield offset
            if before >= number or time_ms < begin_ms:
                return
            number = before

    def _entry_place(self, number: int) -> int:
        return HEAD_SIZE + self._slots * _SLOT_SIZE + number * _ENTRY.size

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        return next(self._entries(number, number + 1))

    def _entries(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        size = (end - begin) * _ENTRY.size
        return _ENTRY.iter_unpack(self._file.copy(self._entry_place(begin), size))

    def release(self) -> None:
        """Release the memory of the slots."""
        self._file.release()

    def sync(self) -> None:
        """Sync the file. May run in another thread."""
        self.is_synced = True
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
