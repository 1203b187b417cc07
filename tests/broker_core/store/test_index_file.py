"""One index file: chains of equal slots, its head, and what a dead process left half done."""

import struct

import pytest

from reliable_mq.broker_core.store.index_entries import IndexColumns
from reliable_mq.broker_core.store.index_file import HEAD_SIZE, IndexFile, file_size
from reliable_mq.errors import InvariantBroken
from reliable_mq.testing.memory_disk import MemoryDisk, MemoryFile

SLOTS, CAPACITY = 4, 9
BEGIN_MS = 1_700_000_000_000
FOREVER = (0, 2**62)


def columns(*rows: tuple[int, int, int]) -> IndexColumns:
    """Make entries of hashes, log offsets, and seconds since the first."""
    hashes, offsets, seconds = (list(each) for each in zip(*rows, strict=True))
    return IndexColumns(hashes, offsets, [BEGIN_MS + 1000 * each for each in seconds])


class Opened:
    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.file = self._file()
        self.index = IndexFile(self.file, SLOTS, CAPACITY)

    def _file(self) -> MemoryFile:
        return self.disk.open("index/1", file_size(SLOTS, CAPACITY))

    def again(self) -> IndexFile:
        return IndexFile(self._file(), SLOTS, CAPACITY)

    def slots(self) -> list[int]:
        return list(struct.unpack(f">{SLOTS}i", self.file.copy(HEAD_SIZE, 4 * SLOTS)))

    def set_slot(self, slot: int, number: int) -> None:
        self.file.write(HEAD_SIZE + 4 * slot, (struct.pack(">i", number),))


@pytest.fixture
def opened() -> Opened:
    return Opened()


def test_a_new_file_is_empty_and_has_the_size_of_apaches(opened: Opened) -> None:
    assert file_size(5_000_000, 20_000_000) == 420_000_040
    assert (opened.index.next, opened.index.last_offset) == (1, -1)
    assert list(opened.index.select(7, *FOREVER)) == []
    assert opened.index.is_sound
    assert not opened.index.is_full
    assert opened.index.is_synced
    assert opened.index.append_entries(IndexColumns([], [], [])) == 0
    assert opened.index.is_synced


def test_entries_of_a_hash_are_found_the_newest_first_among_others_of_its_slot(
    opened: Opened,
) -> None:
    assert opened.index.append_entries(columns((1, 100, 0), (5, 200, 1), (2, 300, 2))) == 3
    assert opened.index.append_entries(columns((1, 400, 3), (9, 500, 4))) == 2
    for index in (opened.index, opened.again()):
        assert list(index.select(1, *FOREVER)) == [400, 100]
        assert list(index.select(5, *FOREVER)) == [200]
        assert list(index.select(2, *FOREVER)) == [300]
        assert list(index.select(13, *FOREVER)) == []
        assert list(index.select(0, *FOREVER)) == []
        assert (index.next, index.last_offset, index.end_offset) == (6, 500, 500)
    assert opened.slots() == [0, 5, 3, 0]


def test_the_last_offset_is_that_of_the_newest_entry(opened: Opened) -> None:
    for number, offset in enumerate((100, 200, 300)):
        opened.index.append_entries(columns((number, offset, 0)))
        assert opened.index.last_offset == opened.again().last_offset == offset


def test_the_head_holds_what_apaches_holds(opened: Opened) -> None:
    opened.index.append_entries(columns((1, 100, 0), (5, 200, 1)))
    opened.index.append_entries(columns((2, 300, 7)))
    head = struct.unpack(">qqqqii", opened.file.copy(0, HEAD_SIZE))
    assert head == (BEGIN_MS, BEGIN_MS + 7000, 100, 300, 2, 4)
    entries = HEAD_SIZE + 4 * SLOTS
    assert struct.unpack(">iqii", opened.file.copy(entries + 20, 20)) == (1, 100, 0, 0)
    assert struct.unpack(">iqii", opened.file.copy(entries + 40, 20)) == (5, 200, 1, 1)
    assert struct.unpack(">iqii", opened.file.copy(entries + 60, 20)) == (2, 300, 7, 0)


def test_a_full_file_takes_what_fits_and_no_more(opened: Opened) -> None:
    rows = [(1, 10 * number, number) for number in range(20)]
    assert opened.index.append_entries(columns(*rows[:5])) == 5
    assert not opened.index.is_full
    assert opened.index.append_entries(columns(*rows[5:])) == 3
    assert opened.index.is_full
    assert opened.index.append_entries(columns(*rows)) == 0
    assert list(opened.index.select(1, *FOREVER)) == [10 * number for number in range(7, -1, -1)]


def test_a_span_of_time_is_met_to_the_second_with_both_ends(opened: Opened) -> None:
    opened.index.append_entries(columns((1, 100, 0), (1, 200, 5), (1, 300, 9)))

    def found(begin: int, end: int) -> list[int]:
        return list(opened.index.select(1, BEGIN_MS + 1000 * begin, BEGIN_MS + 1000 * end))

    assert found(0, 9) == [300, 200, 100]
    assert found(0, 8) == [200, 100]
    assert found(5, 5) == [200]
    assert found(1, 4) == []
    assert opened.index.has_time(BEGIN_MS + 9000, BEGIN_MS + 10_000)
    assert not opened.index.has_time(BEGIN_MS + 9001, BEGIN_MS + 10_000)
    assert opened.index.has_time(0, BEGIN_MS)
    assert not opened.index.has_time(0, BEGIN_MS - 1)


def test_a_message_that_is_older_than_the_first_counts_as_stored_with_it(opened: Opened) -> None:
    opened.index.append_entries(columns((1, 100, 10)))
    opened.index.append_entries(columns((1, 200, 3), (1, 300, 12)))
    assert list(opened.index.select(1, BEGIN_MS + 10_000, BEGIN_MS + 10_000)) == [200, 100]


@pytest.mark.parametrize("lost", [0, 1, CAPACITY, 2**31 - 1, -1])
def test_a_slot_that_a_dead_process_did_not_write_is_mended(opened: Opened, lost: int) -> None:
    opened.index.append_entries(columns((1, 100, 0), (2, 200, 0), (5, 300, 1)))
    opened.set_slot(1, lost)
    again = opened.again()
    again.relink_slots()
    assert not again.is_synced
    assert opened.slots() == [0, 3, 2, 0]
    assert list(again.select(1, *FOREVER)) == [100]
    assert list(again.select(5, *FOREVER)) == [300]
    again.sync()
    assert again.is_synced


def test_slots_that_are_right_are_left_as_they_are(opened: Opened) -> None:
    opened.index.append_entries(columns((1, 100, 0), (2, 200, 0)))
    again = opened.again()
    again.relink_slots()
    assert again.is_synced
    assert opened.slots() == [0, 1, 2, 0]


@pytest.mark.parametrize("wrong", [-1, 2, 3, CAPACITY, 2**31 - 1])
def test_a_slot_that_names_no_entry_begins_a_new_chain(opened: Opened, wrong: int) -> None:
    opened.index.append_entries(columns((2, 100, 0)))
    opened.set_slot(1, wrong)
    opened.index.append_entries(columns((1, 200, 0), (2, 300, 0)))
    assert list(opened.index.select(1, *FOREVER)) == [200]
    assert list(opened.index.select(2, *FOREVER)) == [300, 100]


@pytest.mark.parametrize("number", [-1, CAPACITY + 1])
def test_a_head_that_cannot_be_right_is_seen(opened: Opened, number: int) -> None:
    opened.file.write(36, (struct.pack(">i", number),))
    again = opened.again()
    assert again.is_sound == (number < 1), "0 and less is a file that nobody has written"
    if number > CAPACITY:
        with pytest.raises(InvariantBroken, match="I1"):
            again.invariants()
