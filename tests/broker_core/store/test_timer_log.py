"""The timer log: entries in files of one size, blanks between them, and what a crash leaves."""

import struct

import pytest
from tests.broker_core.broker_world import there

from reliable_mq.broker_core.store.timer_log import DELETE, FOLDER, SIZE, TimerEntry, TimerLog
from reliable_mq.errors import StoreCorrupt
from reliable_mq.testing.memory_disk import MemoryDisk

FILE_SIZE = 3 * SIZE + 20
"""Room for three entries and a blank; a fourth entry would leave none for a blank behind it."""
TAKEN_MS = 1_700_000_000_000


def entry(number: int, previous: int = -1, magic: int = 1) -> TimerEntry:
    return TimerEntry(
        previous=previous,
        magic=magic,
        taken_ms=TAKEN_MS + number,
        slot_ms=TAKEN_MS + number + 5000,
        commit_log_offset=100 * number,
        size=77,
        topic_hash=-5,
        due_ms=TAKEN_MS + number + 5001,
    )


def path(first: int) -> str:
    return f"{FOLDER}/{first:020d}"


def added(log: TimerLog, new: TimerEntry) -> int:
    """Add an entry, and return its position."""
    position = log.room()
    log.add(new, new.previous)
    return position


def filled(disk: MemoryDisk, count: int) -> tuple[TimerLog, list[int]]:
    log = TimerLog(disk, FILE_SIZE, 0)
    positions = [added(log, entry(number)) for number in range(count)]
    log.flush()
    return log, positions


def test_an_entry_has_apaches_form_and_is_read_as_it_was() -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, FILE_SIZE, 0)
    assert log.is_flushed
    assert added(log, entry(1, previous=400, magic=DELETE)) == 0
    assert not log.is_flushed
    assert log.read(0) is None
    log.flush()
    log.flush()
    assert log.is_flushed
    assert log.read(0) == log.last() == entry(1, previous=400, magic=DELETE)
    assert SIZE == 52
    assert struct.unpack(">iqiqiqiiq", disk.files()[path(0)][:SIZE]) == (
        *(52, 400, 4, TAKEN_MS + 1, 5000, 100, 77, -5),
        TAKEN_MS + 5002,
    )


def test_entries_lie_one_after_another_and_never_in_two_files() -> None:
    disk = MemoryDisk()
    log, positions = filled(disk, 7)
    assert positions == [
        *(0, SIZE, 2 * SIZE),
        *(FILE_SIZE, FILE_SIZE + SIZE, FILE_SIZE + 2 * SIZE),
        2 * FILE_SIZE,
    ]
    assert [log.read(each) for each in positions] == [entry(number) for number in range(7)]
    blank = struct.unpack(">iqi", disk.files()[path(0)][3 * SIZE : 3 * SIZE + 16])
    assert blank == (20, 0, 0xCBD43194 - (1 << 32))
    assert log.end == 2 * FILE_SIZE + SIZE
    assert len(log.take_unsynced()) == 3
    assert log.take_unsynced() == []


@pytest.mark.parametrize("spare", [15, 16, 17])
def test_an_entry_takes_the_rest_of_a_file_only_with_room_for_a_blank(spare: int) -> None:
    log = TimerLog(MemoryDisk(), 2 * SIZE + spare, 0)
    assert added(log, entry(0)) == 0
    assert added(log, entry(1)) == (SIZE if spare >= 16 else 2 * SIZE + spare)


def test_each_position_tells_where_the_next_entry_begins() -> None:
    log, positions = filled(MemoryDisk(), 4)
    assert [log.after(each) for each in positions] == [
        *(SIZE, 2 * SIZE, 3 * SIZE),
        FILE_SIZE + SIZE,
    ]
    assert log.after(3 * SIZE) == FILE_SIZE, "a blank leads to the next file"
    assert log.after(log.end) == log.end
    assert log.after(9 * FILE_SIZE) == 9 * FILE_SIZE


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7])
def test_the_last_entry_is_found_also_behind_a_blank(count: int) -> None:
    log, _ = filled(MemoryDisk(), count)
    assert log.last() == entry(count - 1)


def test_an_empty_log_has_no_last_entry() -> None:
    log = TimerLog(MemoryDisk(), FILE_SIZE, 0)
    assert (log.last(), log.start, log.end) == (None, 0, 0)


@pytest.mark.parametrize(
    ("at", "data"),
    [(0, b"\0\0\0\x35"), (12, bytes(4)), (12, b"\0\0\0\x10"), (12, b"\xff\xff\xff\xff")],
)
def test_what_is_no_entry_is_not_read(at: int, data: bytes) -> None:
    disk = MemoryDisk()
    log, _ = filled(disk, 1)
    disk.open(path(0), FILE_SIZE).write(at, (data,))
    assert log.read(0) is None
    assert log.after(0) == 0


def test_an_entry_may_bear_all_bits_of_its_magic() -> None:
    log = TimerLog(MemoryDisk(), FILE_SIZE, 0)
    added(log, entry(0, magic=15))
    log.flush()
    assert log.read(0) == entry(0, magic=15)


def test_an_entry_is_linked_and_retired_where_it_lies() -> None:
    log, positions = filled(MemoryDisk(), 5)
    log.take_unsynced()
    log.relink(positions[3], 7)
    log.retire(positions[1], TAKEN_MS - 1000)
    assert log.read(positions[3]) == entry(3)._replace(previous=7)
    assert log.read(positions[1]) == entry(1)._replace(slot_ms=TAKEN_MS - 1000)
    assert log.read(positions[2]) == entry(2)
    log.relink(positions[3], -1)
    assert log.read(positions[3]) == entry(3)
    log.retire(log.end, TAKEN_MS)
    assert log.read(log.end) is None
    assert len(log.take_unsynced()) == 2


@pytest.mark.parametrize("sign", [-1, 1])
def test_an_entry_of_a_slot_weeks_away_was_taken_up_as_near_as_its_field_allows(sign: int) -> None:
    """The difference of both times has 32 bits. The slot is what counts."""
    log = TimerLog(MemoryDisk(), FILE_SIZE, 0)
    slot_ms = TAKEN_MS + sign * 2**31
    position = added(log, entry(0)._replace(slot_ms=slot_ms))
    log.flush()
    assert log.read(position) == entry(0)._replace(taken_ms=TAKEN_MS + sign, slot_ms=slot_ms)

    log.retire(position, TAKEN_MS - sign * 2**31)

    retired = there(log.read(position))
    assert (retired.slot_ms, retired.taken_ms) == (TAKEN_MS - sign * 2**31, TAKEN_MS - sign)


def test_a_log_opens_at_its_end_and_cuts_what_stands_behind() -> None:
    disk = MemoryDisk()
    _, positions = filled(disk, 7)
    log = TimerLog(disk, FILE_SIZE, positions[1])
    assert log.read(positions[6]) == entry(6)
    log.cut()
    assert disk.names(FOLDER) == [f"{0:020d}"]
    assert log.read(positions[0]) == entry(0)
    assert log.read(positions[1]) is None
    assert len(log.take_unsynced()) == 1
    assert added(log, entry(9)) == positions[1]
    log.flush()
    assert log.read(positions[1]) == entry(9)


def test_a_log_that_ends_with_its_file_keeps_that_file() -> None:
    disk = MemoryDisk()
    _, positions = filled(disk, 4)
    log = TimerLog(disk, FILE_SIZE, FILE_SIZE)
    log.cut()
    assert set(disk.names(FOLDER)) >= {f"{0:020d}"}
    assert log.read(positions[2]) == entry(2)
    assert log.read(positions[3]) is None


def test_files_go_when_the_commit_log_has_none_of_their_messages() -> None:
    disk = MemoryDisk()
    log, positions = filled(disk, 7)
    log.remove_before(200)  # the last of the first file is at 200
    assert log.start == 0
    log.remove_before(201)
    assert log.start == FILE_SIZE
    assert log.read(positions[2]) is None
    assert log.read(positions[3]) == entry(3)
    log.remove_before(10**9)
    assert log.start == 2 * FILE_SIZE, "never the newest"
    assert len(log.take_unsynced()) == 1
    assert +disk.opened == {path(2 * FILE_SIZE): 1}
    assert disk.names(FOLDER) == [f"{2 * FILE_SIZE:020d}"]
    again = TimerLog(disk, FILE_SIZE, log.end)
    assert (again.start, again.last()) == (2 * FILE_SIZE, entry(6))


def test_all_files_without_messages_go_at_once() -> None:
    disk = MemoryDisk()
    log, _ = filled(disk, 14)
    log.remove_before(100 * 9)
    assert disk.names(FOLDER) == [f"{number * FILE_SIZE:020d}" for number in (3, 4)]
    assert log.start == 3 * FILE_SIZE


def test_a_file_of_another_size_is_refused_but_an_empty_one_was_never_made() -> None:
    disk = MemoryDisk()
    disk.place_file(path(0), b"")
    assert TimerLog(disk, FILE_SIZE, 0).read(0) is None
    disk.place_file(path(0), bytes(FILE_SIZE - 1))
    with pytest.raises(StoreCorrupt, match=f"{FILE_SIZE - 1} bytes instead of {FILE_SIZE}"):
        TimerLog(disk, FILE_SIZE, 0)


def test_names_that_are_no_positions_are_left_alone() -> None:
    disk = MemoryDisk()
    filled(disk, 1)
    for name in ("0", "x" * 20, f"{0:021d}", f"{0:019d}a"):
        disk.place_file(f"{FOLDER}/{name}", b"?")
    assert TimerLog(disk, FILE_SIZE, SIZE).last() == entry(0)
    assert len(disk.names(FOLDER)) == 5


def test_a_missing_file_before_the_end_is_damage_and_behind_it_a_power_loss() -> None:
    disk = MemoryDisk()
    _, positions = filled(disk, 10)
    disk.remove(path(FILE_SIZE))
    with pytest.raises(StoreCorrupt, match="the file before it is missing"):
        TimerLog(disk, FILE_SIZE, FILE_SIZE + 1)
    log = TimerLog(disk, FILE_SIZE, FILE_SIZE)
    assert disk.names(FOLDER) == [f"{0:020d}"]
    assert log.read(positions[2]) == entry(2)


@pytest.mark.parametrize("step", [1, -1, 7])
def test_neighbours_are_read_as_they_are_now(step: int) -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, 200 * SIZE, 0)
    positions = [added(log, entry(number)) for number in range(500)]
    log.flush()
    order = [positions[number * step % 500] for number in range(500)]
    for position in order:
        assert log.read(position) == entry(positions.index(position))
        assert log.read(position + 4) is None  # no entry begins there
    log.relink(positions[3], 77)
    assert there(log.read(positions[3])).previous == 77
    new = added(log, entry(500))
    assert log.read(new) is None
    log.flush()
    assert log.read(new) == entry(500)
    log.end = positions[100]
    log.cut()
    assert [log.read(each) for each in positions[99:102]] == [entry(99), None, None]


def test_neighbours_are_read_at_once() -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, 200 * SIZE, 0)
    positions = [added(log, entry(number)) for number in range(100)]
    log.flush()
    disk.looks = []
    assert all(log.read(each) for each in reversed(positions))
    assert [each.verb for each in disk.looks] == ["read", "read"]
