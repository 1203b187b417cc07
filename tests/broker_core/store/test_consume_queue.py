"""Units of a consume queue: their bytes, their files, and their order (Q1)."""

import pytest

from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, QueueUnit, pack_unit
from reliable_mq.broker_core.store.lanes import Arrivals
from reliable_mq.errors import InvariantBroken
from reliable_mq.testing.memory_disk import MemoryDisk

FILE_SIZE = 100  # five units
FOLDER = "consumequeue/orders/3"


def put(queue: ConsumeQueue, index: int, log_offset: int, size: int, tags_code: int) -> None:
    unit = pack_unit(log_offset, size, tags_code)
    queue.append_units(
        Arrivals("orders", 3, index, [unit], {tags_code}, log_offset, log_offset + size, size)
    )


def filled(disk: MemoryDisk, count: int, first: int = 0) -> ConsumeQueue:
    queue = ConsumeQueue(disk, "orders", 3, FILE_SIZE)
    for index in range(first, first + count):
        put(queue, index, index * 1000, 900, index)
    queue.flush()
    return queue


def reopened(disk: MemoryDisk) -> ConsumeQueue:
    return ConsumeQueue(disk, "orders", 3, FILE_SIZE)


def test_a_unit_is_stored_as_apache_does() -> None:
    """The example of Apache's own store: offset 0, size 0x4fc, tag "TagA"."""
    assert pack_unit(0, 0x4FC, 2598919).hex() == "0000000000000000000004fc000000000027a807"


@pytest.mark.parametrize("count", range(1, 17))
def test_units_are_read_back_across_files(count: int) -> None:
    disk = MemoryDisk()
    filled(disk, count)

    queue = reopened(disk)

    assert (queue.first, queue.end) == (0, count)
    assert [queue.unit(n) for n in range(count)] == [
        QueueUnit(n * 1000, 900, n) for n in range(count)
    ]
    assert queue.last_log_offset == (count - 1) * 1000
    assert queue.log_end == (count - 1) * 1000 + 900
    assert disk.names(FOLDER) == [f"{n * 100:020d}" for n in range((count + 4) // 5)]


def test_a_read_ends_with_its_file() -> None:
    queue = filled(MemoryDisk(), 12)

    assert [unit.tags_code for unit in queue.units(3, 10)] == [3, 4]
    assert [unit.tags_code for unit in queue.units(10, 10)] == [10, 11]
    assert queue.units(12, 1) == []
    assert queue.units(99, 1) == []


@pytest.mark.parametrize("written", range(13))
@pytest.mark.parametrize("index", [0, 3, 4, 9, 11, 12])
def test_units_can_be_read_whether_they_are_written_or_wait(index: int, written: int) -> None:
    queue = ConsumeQueue(MemoryDisk(), "orders", 3, FILE_SIZE)
    for number in range(12):
        if number == written:
            queue.flush()
        put(queue, number, number * 1000, 900 + number, number)

    units = queue.units(index, 3)

    of_file = range(index, min(index + 3, 12, index - index % 5 + 5))
    assert units == [QueueUnit(number * 1000, 900 + number, number) for number in of_file]
    places = queue.places(index, 3)
    assert (places is None) == (not units)
    if places:
        assert list(zip(*places, strict=True)) == [(unit[0], unit[1]) for unit in units]


def test_there_are_no_places_where_there_are_no_units() -> None:
    queue = filled(MemoryDisk(), 2, first=7)

    for index in (0, 9, 10, 99):
        assert queue.places(index, 1) is None
    assert queue.places(8, 0) is None


@pytest.mark.parametrize("first", [1, 4, 5, 7, 23])
def test_a_queue_that_begins_later_is_blank_before(first: int) -> None:
    disk = MemoryDisk()
    filled(disk, 2, first=first)
    blank = bytes.fromhex("00000000000000007fffffff0000000000000000")
    path = f"{FOLDER}/{first // 5 * 100:020d}"

    assert disk.files()[path].startswith(blank * (first % 5))
    queue = reopened(disk)
    assert (queue.first, queue.end) == (first, first + 2)


def test_a_queue_with_blank_units_only_knows_no_record() -> None:
    """Its first unit was not written. A record that it knows would count as durable."""
    disk = MemoryDisk()
    put(reopened(disk), 3, 1_000, 10, 0)

    queue = reopened(disk)

    assert (queue.first, queue.end) == (3, 3)
    assert (queue.last_log_offset, queue.log_end) == (-1, 0)


@pytest.mark.parametrize("size", [0x7FFFFFFF, 0x7FFF0000])
def test_blank_units_of_which_a_crash_took_some_know_no_record(size: int) -> None:
    """It may have taken a part of the last one, too, also of its size."""
    disk = MemoryDisk()
    blank = pack_unit(0, 0x7FFFFFFF, 0)
    units = blank + bytes(20) + pack_unit(0, size, 0)
    put(reopened(disk), 3, 1_000, 10, 0)
    disk.place_file(f"{FOLDER}/{0:020d}", units.ljust(FILE_SIZE, b"\0"))

    queue = reopened(disk)

    assert (queue.first, queue.end) == (3, 3)
    assert (queue.last_log_offset, queue.log_end) == (-1, 0)


def test_units_of_one_turn_are_one_write() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 1)
    operations = len(disk.operations)

    for index in (1, 2, 3):
        put(queue, index, index, 1, 0)
    queue.flush()
    queue.flush()

    assert [operation.verb for operation in disk.operations[operations:]] == ["write"]


@pytest.mark.parametrize("index", [0, 2, 4])
def test_a_unit_that_is_not_the_next_breaks_the_invariant(index: int) -> None:
    queue = filled(MemoryDisk(), 3)

    with pytest.raises(InvariantBroken, match="Q1"):
        put(queue, index, 1, 1, 1)


@pytest.mark.parametrize("end", range(13))
def test_a_cut_leaves_nothing_behind_it(end: int) -> None:
    disk = MemoryDisk()
    queue = filled(disk, 13)

    queue.cut(end)

    assert reopened(disk).end == end
    left = b"".join(data for _, data in sorted(disk.files().items()))
    assert not any(left[end * 20 :])


@pytest.mark.parametrize("log_offset", [0, 1, 1000, 4500, 5000, 12_000, 99_999])
def test_the_unit_of_a_log_offset_is_found_by_bisection(log_offset: int) -> None:
    queue = filled(MemoryDisk(), 13)

    assert queue.index_of(log_offset) == min(-(-log_offset // 1000), 13)


def test_files_that_must_be_synced_are_named_once() -> None:
    queue = filled(MemoryDisk(), 7)

    assert len(queue.take_unsynced()) == 2
    assert queue.take_unsynced() == []


def test_foreign_names_in_the_folder_are_left_alone() -> None:
    disk = MemoryDisk()
    disk.place_file(f"{FOLDER}/notes.txt", b"hello")
    filled(disk, 2)

    assert reopened(disk).end == 2
    assert disk.files()[f"{FOLDER}/notes.txt"] == b"hello"


def test_a_queue_is_extended_across_files() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 3)

    queue.extend(3, b"".join(pack_unit(n * 1000, 900, n) for n in range(3, 12)))

    assert (queue.end, queue.log_end) == (12, 11_900)
    assert [reopened(disk).unit(n).tags_code for n in range(12)] == list(range(12))
