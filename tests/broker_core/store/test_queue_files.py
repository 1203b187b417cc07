"""The files of a consume queue: opened, grown, cut, trimmed, emptied; and room that is missing."""

import errno

import pytest

from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, QueueUnit, pack_unit
from reliable_mq.broker_core.store.deletions import QueueBegin
from reliable_mq.broker_core.store.lanes import Arrivals
from reliable_mq.errors import InvariantBroken, StoreCorrupt
from reliable_mq.testing.memory_disk import MemoryDisk

FILE_SIZE = 100  # five units
FOLDER = "consumequeue/orders/3"
BLANK = QueueUnit(0, 0x7FFFFFFF, 0)


def path(number: int) -> str:
    return f"{FOLDER}/{number * FILE_SIZE:020d}"


def unit(number: int) -> QueueUnit:
    return QueueUnit(number * 1000, 900, number)


def packed(*numbers: int) -> bytes:
    return b"".join(pack_unit(*unit(number)) for number in numbers)


def opened(disk: MemoryDisk, origin: QueueBegin | None = None) -> ConsumeQueue:
    return ConsumeQueue(disk, "orders", 3, FILE_SIZE, origin or QueueBegin())


def put(queue: ConsumeQueue, *numbers: int) -> bool:
    units = [packed(number) for number in numbers]
    last = unit(numbers[-1]).commit_log_offset
    return queue.append_units(
        Arrivals("orders", 3, numbers[0], units, set(), last, last + 900, 900 * len(units))
    )


def filled(disk: MemoryDisk, end: int, begin: int = 0) -> ConsumeQueue:
    queue = opened(disk)
    put(queue, *range(begin, end))
    queue.flush()
    return queue


def extent(queue: ConsumeQueue) -> tuple[int, int, int, int]:
    return queue.first, queue.end, queue.last_log_offset, queue.log_end


def synced(queue: ConsumeQueue) -> list[str]:
    """Return the paths of the files that need a sync."""
    return [getattr(file, "path", "") for file in queue.take_unsynced()]


def fail_next(disk: MemoryDisk, error: int) -> None:
    disk.fail_at, disk.error = len(disk.operations), error


def test_a_queue_without_messages_has_no_file_and_begins_at_nought() -> None:
    disk = MemoryDisk()
    queue = opened(disk)
    assert extent(queue) == (0, 0, -1, 0)
    assert (queue.topic, queue.queue_id) == ("orders", 3)
    assert (queue.begin, queue.is_waiting) == (0, False)
    assert queue.is_contiguous
    assert queue.is_filled(0)
    assert queue.take_growth() == (0, 0)
    assert queue.take_files() == queue.trim(10) == []
    queue.flush()
    assert disk.operations == []


def test_a_deleted_queue_without_messages_begins_where_it_ended() -> None:
    queue = opened(MemoryDisk(), QueueBegin(10))
    assert (extent(queue), queue.begin) == ((10, 10, -1, 0), 10)
    assert queue.take_growth() == (0, 0)
    put(queue, 10)
    assert extent(queue) == (10, 11, 10_000, 10_900)


def test_stale_empty_and_foreign_files_are_not_opened_but_later_ones_are() -> None:
    disk = MemoryDisk()
    filled(disk, 12)
    disk.place_file(path(0), bytes(33))
    disk.place_file(f"{FOLDER}/{0:019d}", b"?")
    disk.place_file(f"{FOLDER}/{0:019d}a", b"?")
    disk.place_file(path(7), b"")
    queue = opened(disk, QueueBegin(5, frozenset({f"{0:020d}"})))
    assert extent(queue) == (5, 12, 11_000, 11_900)
    with pytest.raises(StoreCorrupt, match=f"{path(0)}: 33 bytes instead of 100"):
        opened(disk)


def test_a_queue_opens_at_the_end_of_its_units_also_when_they_fill_a_file() -> None:
    for end in range(1, 16):
        disk = MemoryDisk()
        filled(disk, end)
        assert extent(opened(disk)) == (0, end, 1000 * (end - 1), 1000 * (end - 1) + 900)


@pytest.mark.parametrize("bad", [QueueUnit(-1, 900, 0), QueueUnit(5, 0, 0)])
def test_a_queue_ends_before_a_unit_that_names_no_record(bad: QueueUnit) -> None:
    disk = MemoryDisk()
    filled(disk, 3)
    disk.open(path(0), FILE_SIZE).write(60, (pack_unit(*bad),))
    assert extent(opened(disk)) == (0, 3, 2000, 2900)


def test_the_first_record_of_the_log_may_be_a_message_of_the_queue() -> None:
    disk = MemoryDisk()
    queue = opened(disk)
    queue.extend(0, pack_unit(0, 1, 0))
    assert extent(opened(disk)) == (0, 1, 0, 1)


def test_a_queue_with_a_missing_file_is_opened_from_its_first_to_its_last_file() -> None:
    disk = MemoryDisk()
    filled(disk, 18)
    disk.remove(path(1))
    queue = opened(disk)
    assert not queue.is_contiguous
    assert (queue.first, queue.end) == (0, 20)
    assert queue.units(6, 3) == []


@pytest.mark.parametrize(
    ("lost", "is_filled"),
    [(0, False), (4, False), (5, False), (9, False), (10, False), (12, False), (2, True)],
)
def test_a_lost_unit_is_seen_at_the_edges_of_each_file_and_at_the_end(
    lost: int, is_filled: bool
) -> None:
    disk = MemoryDisk()
    queue = filled(disk, 14)
    assert queue.is_filled(13)
    number, at = divmod(lost * 20, FILE_SIZE)
    disk.open(path(number), FILE_SIZE).write(at, (bytes(20),))
    assert queue.is_filled(13) is is_filled


@pytest.mark.parametrize("lost", [7, 9, 10, 12])
def test_the_edges_of_a_queue_that_begins_within_a_file_are_its_own(lost: int) -> None:
    disk = MemoryDisk()
    queue = filled(disk, 13, begin=7)
    assert queue.is_filled(13)
    assert queue.is_filled(8)
    disk.open(path(lost // 5), FILE_SIZE).write(lost % 5 * 20, (bytes(20),))
    assert not queue.is_filled(13)


def test_units_that_are_not_written_count_as_behind_every_log_offset() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 10)
    disk.open(path(0), FILE_SIZE).write(80, (bytes(20),))
    disk.open(path(1), FILE_SIZE).write(0, (bytes(FILE_SIZE),))
    assert [queue.index_of(offset) for offset in (3000, 3001, 9000, 99_000)] == [3, 4, 4, 4]


def test_growth_is_counted_in_messages_and_bytes_since_it_was_asked_last() -> None:
    queue = filled(MemoryDisk(), 3)
    assert queue.take_growth() == (3, 2700)
    put(queue, 3, 4)
    put(queue, 5)
    assert queue.take_growth() == (3, 2700)
    assert queue.take_growth() == (0, 0)
    assert opened(MemoryDisk()).take_growth() == (0, 0)


def test_growth_is_not_counted_again_when_a_queue_opens() -> None:
    disk = MemoryDisk()
    filled(disk, 3)
    assert opened(disk).take_growth() == (0, 0)


def test_units_wait_until_there_are_512_of_them_for_one_write() -> None:
    queue = opened(MemoryDisk())
    assert not put(queue, *range(511))
    assert queue.is_waiting
    assert put(queue, 511)
    queue.flush()
    assert not queue.is_waiting
    assert not put(queue, 512)


def test_units_are_written_with_one_write_for_each_file() -> None:
    disk = MemoryDisk()
    queue = opened(disk)
    put(queue, 0, 1, 2)
    queue.flush()
    put(queue, *range(3, 12))
    begin = len(disk.operations)
    queue.flush()
    writes = [each for each in disk.operations[begin:] if each.verb == "write"]
    assert [(each.path, each.at, each.size) for each in writes] == [
        *((path(0), 60, 40), (path(1), 0, 100), (path(2), 0, 40)),
    ]
    assert synced(queue) == [path(0), path(1), path(2)]


def test_units_that_cannot_be_written_stay_readable_and_are_written_later() -> None:
    disk = MemoryDisk()
    queue = opened(disk)
    put(queue, *range(7))
    fail_next(disk, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        queue.flush()
    assert [queue.unit(number) for number in range(7)] == [unit(number) for number in range(7)]
    queue.flush()
    assert [opened(disk).unit(number) for number in range(7)] == [unit(n) for n in range(7)]


@pytest.mark.parametrize("written", [0, 1])
def test_without_room_the_rest_of_an_extension_waits_in_memory(written: int) -> None:
    disk = MemoryDisk()
    queue = opened(disk)
    disk.fail_at, disk.error = 2 * written, errno.ENOSPC  # a file is created, then written
    queue.extend(0, packed(*range(12)))
    assert extent(queue) == (0, 12, 11_000, 11_900)
    assert queue.is_waiting
    assert synced(queue) == [path(0)][:written]
    assert [queue.unit(number) for number in range(12)] == [unit(number) for number in range(12)]
    queue.flush()
    assert not queue.is_waiting
    assert extent(opened(disk)) == extent(queue)


def test_an_extension_that_fails_for_another_reason_is_an_error() -> None:
    disk = MemoryDisk()
    queue = opened(disk)
    fail_next(disk, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        queue.extend(0, packed(0))


def test_an_extension_names_the_files_that_need_a_sync() -> None:
    queue = filled(MemoryDisk(), 4)
    synced(queue)
    queue.extend(4, packed(4, 5))
    assert synced(queue) == [path(0), path(1)]
    assert extent(queue) == (0, 6, 5000, 5900)
    assert not queue.is_waiting


def test_an_empty_queue_may_be_extended_from_any_message_but_another_only_from_its_end() -> None:
    disk = MemoryDisk()
    queue = opened(disk)
    queue.extend(7, packed(7))
    assert extent(queue) == (7, 8, 7000, 7900)
    assert synced(queue) == [path(1)]
    for number in (7, 9):
        with pytest.raises(InvariantBroken, match="Q1"):
            queue.extend(number, packed(number))


def test_a_queue_that_was_deleted_goes_on_in_the_next_file_and_never_before_it() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 12)
    put(queue, 12)
    assert [name for _file, name in queue.restart_at(13)] == [path(0), path(1), path(2)]
    assert (extent(queue), queue.begin, queue.is_waiting) == ((15, 15, -1, 0), 15, False)
    assert queue.take_growth() == (0, 0)
    assert synced(queue) == []
    with pytest.raises(InvariantBroken, match="Q1"):
        put(queue, 14)
    put(queue, 15)
    assert extent(queue) == (15, 16, 15_000, 15_900)
    assert queue.restart_at(20) == []
    assert queue.first == 20, "which begins a file itself"


def test_a_queue_that_is_reset_is_as_if_it_had_never_been() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 12, begin=3)
    removed = len(disk.operations)
    queue.reset()
    assert extent(queue) == (0, 0, -1, 0)
    assert disk.names(FOLDER) == []
    assert set(disk.opened.values()) == {0}
    assert synced(queue) == []
    assert [each.path for each in disk.operations[removed:]] == [path(2), path(1), path(0)], (
        "the last one first: a start that is stopped here finds no gap"
    )


def test_a_mended_unit_is_written_in_its_place_and_moves_the_end_only_as_the_last() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 7)
    synced(queue)
    queue.replace_unit(2, QueueUnit(2001, 901, 5))
    assert (queue.unit(2), extent(queue)) == (QueueUnit(2001, 901, 5), (0, 7, 6000, 6900))
    assert synced(queue) == [path(0)]
    queue.replace_unit(6, QueueUnit(6001, 901, 5))
    assert extent(queue) == (0, 7, 6001, 6902)
    assert [queue.path_of(number) for number in (0, 4, 5)] == [path(0), path(0), path(1)]


def test_a_cut_needs_a_sync_only_where_it_changed_something() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 13)
    synced(queue)
    queue.cut(8)
    assert extent(queue) == (0, 8, 7000, 7900)
    assert disk.names(FOLDER) == [f"{0:020d}", f"{100:020d}"]
    assert synced(queue) == [path(1)]
    queue.cut(8)
    assert synced(queue) == [], "it was cut there"


def test_files_that_a_cut_removed_need_no_sync_and_are_closed() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 13)
    begin = len(disk.operations)
    queue.cut(5)
    removed = [each.path for each in disk.operations[begin:] if each.verb == "remove"]
    assert removed == [path(2), path(1)], "so a cut that is stopped leaves no gap"
    assert disk.names(FOLDER) == [f"{0:020d}"]
    assert synced(queue) == [path(0)]
    queue.close()
    assert set(disk.opened.values()) == {0}


def test_a_cut_at_the_begin_keeps_the_first_file_which_has_the_number() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 13, begin=5)
    queue.cut(5)
    assert extent(queue) == (5, 5, -1, 0)
    assert disk.names(FOLDER) == [f"{100:020d}"]
    assert not any(disk.files()[path(1)])
    queue.cut(5)
    assert disk.names(FOLDER) == [f"{100:020d}"]


@pytest.mark.parametrize("log_start", range(0, 13_500, 500))
def test_a_trim_hands_out_the_files_with_older_units_only_but_never_the_last(
    log_start: int,
) -> None:
    disk = MemoryDisk()
    queue = filled(disk, 13)
    gone = queue.trim(log_start)
    first = min(-(-log_start // 1000), 13)
    assert (queue.first, queue.end) == (first, 13)
    assert [name for _file, name in gone] == [path(n) for n in range(min(first // 5, 2))]
    assert synced(queue) == [path(n) for n in range(min(first // 5, 2), 3)]
    assert queue.trim(log_start) == []
    for file, name in gone:
        file.close()
        disk.remove(name)
    assert [queue.unit(number) for number in range(first, 13)] == [
        unit(number) for number in range(first, 13)
    ]
    queue.close()
    assert set(disk.opened.values()) == {0}


def test_a_trim_that_has_nothing_to_do_reads_one_unit() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 13)
    disk.looks = []
    assert queue.trim(0) == []
    assert len(disk.looks) == 1


def test_a_queue_that_was_trimmed_opens_again_at_its_units() -> None:
    disk = MemoryDisk()
    queue = filled(disk, 13, begin=2)
    for file, name in queue.trim(8000):
        file.close()
        disk.remove(name)
    again = opened(disk)
    assert (again.first, again.end) == (5, 13), "whole files are gone"
    assert again.unit(5) == unit(5)


def test_units_before_the_begin_of_a_queue_are_blank() -> None:
    disk = MemoryDisk()
    filled(disk, 9, begin=7)
    written = disk.files()[path(1)]
    assert written == pack_unit(*BLANK) * 2 + packed(7, 8) + bytes(20)
