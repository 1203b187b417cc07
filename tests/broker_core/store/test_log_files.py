"""The files of a log: which are opened, made ahead, read, cut and closed."""

import errno
from collections.abc import Callable

import pytest

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.errors import InvariantBroken, StoreCorrupt
from reliable_mq.testing.memory_disk import MemoryDisk, MemoryFile
from reliable_mq.wire.record import BLANK_SIZE, encode_blank

SEGMENT = 512
FOLDER = "commitlog"


def path(first: int) -> str:
    return f"{FOLDER}/{first:020d}"


def append(log: CommitLog, *sizes: int) -> None:
    for size in sizes:
        log.room_for(size)
        log.add(b"r" * size)


def store(log: CommitLog) -> None:
    batch = log.take_batch()
    assert batch is not None
    CommitLog.write_batch(batch)
    CommitLog.sync(batch)
    log.mark_durable(batch.end)


def stored(disk: MemoryDisk, *sizes: int, segment: int = SEGMENT) -> CommitLog:
    """Return a log with records of these sizes, durable."""
    log = CommitLog(disk, segment)
    append(log, *sizes)
    store(log)
    return log


def looks(disk: MemoryDisk, verb: str) -> list[tuple[str, int, int]]:
    """Return what was noted of one kind since the last call: path, place, size."""
    assert disk.looks is not None
    found = [(each.path, each.at, each.size) for each in disk.looks if each.verb == verb]
    disk.looks.clear()
    return found


def test_a_log_opens_at_its_oldest_segment_and_ends_there_until_recovery() -> None:
    disk = MemoryDisk()
    for first in (2 * SEGMENT, 3 * SEGMENT):
        disk.place_file(path(first), b"r" * SEGMENT)
    log = CommitLog(disk, SEGMENT)
    assert (log.start, log.durable, log.written, log.end) == (2 * SEGMENT,) * 4
    assert (log.capacity_end, log.segment_size) == (4 * SEGMENT, SEGMENT)
    assert log.segment_starts == [2 * SEGMENT, 3 * SEGMENT]
    assert log.read(2 * SEGMENT, 10) == b""
    assert log.pending == []
    assert log.damage.stretches == []


def test_a_new_log_begins_at_nought_with_no_file() -> None:
    disk = MemoryDisk()
    log = CommitLog(disk, SEGMENT)
    assert (log.start, log.durable, log.written, log.end, log.capacity_end) == (0,) * 5
    assert log.read(0, 1) == b""
    assert log.segments_from(0) == []
    log.prepare_segment()
    log.cut(0)
    assert disk.operations == []


def test_names_that_are_no_offset_are_left_alone() -> None:
    disk = MemoryDisk()
    disk.place_file(path(0), bytes(SEGMENT))
    for name in ("1", "x" * 20, f"{SEGMENT:021d}", f"{SEGMENT:019d}a"):
        disk.place_file(f"{FOLDER}/{name}", b"?")
    assert CommitLog(disk, SEGMENT).segment_starts == [0]


def test_an_empty_last_file_was_being_made_and_an_empty_earlier_one_is_cut_short() -> None:
    disk = MemoryDisk()
    disk.place_file(path(0), bytes(SEGMENT))
    disk.place_file(path(SEGMENT), b"")
    assert CommitLog(disk, SEGMENT).segment_starts == [0]
    disk.place_file(path(2 * SEGMENT), b"")
    with pytest.raises(StoreCorrupt, match=f"{path(SEGMENT)}: 0 bytes instead of 512; the file is"):
        CommitLog(disk, SEGMENT)


def test_a_segment_that_lacks_its_predecessor_is_refused_by_the_name_of_that() -> None:
    disk = MemoryDisk()
    for first in (0, SEGMENT, 3 * SEGMENT):
        disk.place_file(path(first), bytes(SEGMENT))
    with pytest.raises(StoreCorrupt, match=f"{path(2 * SEGMENT)}: this segment is missing"):
        CommitLog(disk, SEGMENT)


@pytest.mark.parametrize(
    ("sizes", "is_cut"),
    [
        ([4096], False),  # another setting
        ([8192 * 2], False),
        ([4097], True),
        ([4096, 8192], True),  # another file has the right size
        ([8193], False),
    ],
)
def test_a_file_is_cut_short_when_no_setting_explains_its_size(
    sizes: list[int], is_cut: bool
) -> None:
    disk = MemoryDisk()
    for number, size in enumerate(sizes):
        disk.place_file(path(number * 8192), bytes(size))
    with pytest.raises(StoreCorrupt) as refused:
        CommitLog(disk, 8192)
    assert ("the file is cut short" in str(refused.value)) is is_cut
    assert ("set mappedFileSizeCommitLog" in str(refused.value)) is not is_cut


def test_a_batch_over_several_segments_is_written_each_part_in_its_place() -> None:
    disk = MemoryDisk()
    stored(disk, 400, 300, 100, 200)
    content = [disk.files()[path(first)] for first in (0, SEGMENT, 2 * SEGMENT)]
    assert content == [
        b"r" * 400 + encode_blank(112) + bytes(112 - BLANK_SIZE),
        b"r" * 400 + encode_blank(112) + bytes(112 - BLANK_SIZE),
        b"r" * 200 + bytes(312),
    ]


def test_a_later_batch_begins_where_the_one_before_it_ended() -> None:
    disk = MemoryDisk()
    log = stored(disk, 100)
    assert log.pending == []
    append(log, 50)
    assert log.pending
    (write,) = batch.writes if (batch := log.take_batch()) else []
    assert (write.at, write.parts, batch.end if batch else 0) == (100, [b"r" * 50], 150)
    assert log.take_batch() is None


def test_more_writes_are_expected_behind_each_one() -> None:
    disk = MemoryDisk()
    disk.looks = []
    stored(disk, 100, 250, 300)
    assert looks(disk, "write_ahead") == [(path(0), 350 + BLANK_SIZE, 0), (path(SEGMENT), 300, 0)]


def test_a_batch_that_is_synced_survives_a_loss_of_power_in_all_its_segments() -> None:
    disk = MemoryDisk()
    stored(disk, 400, 300)
    synced = [each.path for each in disk.operations if each.verb == "sync"]
    # The first one also before the second begins: its name must not be lost alone.
    assert synced == [path(0), path(0), path(SEGMENT)]


def test_a_record_may_close_a_segment_exactly_with_room_for_a_blank() -> None:
    disk = MemoryDisk()
    log = stored(disk, SEGMENT - BLANK_SIZE)
    assert (log.end, log.capacity_end) == (SEGMENT - BLANK_SIZE, SEGMENT)
    append(log, 1)
    store(log)
    assert log.segment_starts == [0, SEGMENT]
    assert disk.files()[path(0)][-BLANK_SIZE:] == encode_blank(BLANK_SIZE)


def test_a_segment_that_is_full_to_its_last_byte_gets_no_blank() -> None:
    disk = MemoryDisk()
    disk.place_file(path(0), b"r" * SEGMENT)
    log = CommitLog(disk, SEGMENT)
    log.reset_end(SEGMENT)
    append(log, 5)
    store(log)
    assert disk.files()[path(0)] == b"r" * SEGMENT
    assert (log.read(SEGMENT, 5), log.end) == (b"r" * 5, SEGMENT + 5)


def test_a_segment_that_cannot_be_made_leaves_the_log_as_it_was() -> None:
    disk = MemoryDisk()
    log = stored(disk, 400)
    disk.fail_at, disk.error = len(disk.operations), errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        log.room_for(200)
    assert (log.end, log.capacity_end, log.pending) == (400, SEGMENT, [])
    append(log, 200)
    store(log)
    assert log.read(SEGMENT, 200) == b"r" * 200


@pytest.mark.parametrize(("end", "is_made"), [(SEGMENT // 2, False), (SEGMENT // 2 + 1, True)])
def test_the_next_segment_is_made_when_less_than_half_of_the_newest_is_left(
    end: int, is_made: bool
) -> None:
    disk = MemoryDisk()
    log = stored(disk, end)
    log.prepare_segment()
    assert (disk.size_of(path(SEGMENT)) == SEGMENT) is is_made
    assert log.segment_starts == [0]


def test_a_segment_that_was_made_ahead_has_a_durable_name_and_is_taken_once() -> None:
    disk = MemoryDisk()
    log = stored(disk, 300)
    log.prepare_segment()
    assert disk.operations[-1] == ("sync", path(SEGMENT), 0, 0)
    append(log, 400)
    store(log)
    assert disk.opened[path(SEGMENT)] == 1
    log.prepare_segment()  # the one that was taken is in use, and stays open
    append(log, 100)
    store(log)
    assert log.read(SEGMENT, 500) == b"r" * 500
    log.close()
    assert set(disk.opened.values()) == {0}


class SlowDisk(MemoryDisk):
    """A disk that lets something else run while it opens a file for the first time."""

    meanwhile: Callable[[], None] | None = None

    def open(self, path: str, size: int) -> MemoryFile:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()
        return super().open(path, size)


def test_a_segment_that_was_made_too_late_is_closed() -> None:
    """Given that the log needs the next segment while another thread makes it."""
    disk = SlowDisk()
    log = stored(disk, 300)
    disk.meanwhile = lambda: append(log, 400)
    log.prepare_segment()
    assert disk.opened[path(SEGMENT)] == 2
    log.prepare_segment()
    assert disk.opened[path(SEGMENT)] == 1
    assert disk.opened[path(2 * SEGMENT)] == 1, "the next one waits"
    store(log)
    assert log.read(SEGMENT, 400) == b"r" * 400
    log.close()
    assert set(disk.opened.values()) == {0}


def test_a_record_needs_a_room_of_its_own() -> None:
    log = CommitLog(MemoryDisk(), SEGMENT)
    with pytest.raises(InvariantBroken, match="S1"):
        log.add(b"r")
    append(log, 10)
    with pytest.raises(InvariantBroken, match="S1"):
        log.add(b"r" * 10)
    assert log.end == 10


@pytest.mark.parametrize("end", [1, 100, SEGMENT - 9, SEGMENT, SEGMENT + 1, 2 * SEGMENT + 100])
def test_nothing_is_left_behind_a_cut_and_the_log_goes_on_there(end: int) -> None:
    disk = MemoryDisk()
    log = stored(disk, 400, 400, 400)
    log.prepare_segment()
    log.cut(end)
    assert disk.opened[path(3 * SEGMENT)] == 0, "the one that was made ahead"
    assert (log.end, log.written, log.durable) == (end, end, end)
    last = end // SEGMENT * SEGMENT
    assert log.segment_starts == list(range(0, last + 1, SEGMENT))
    assert log.capacity_end == last + SEGMENT
    assert not any(disk.files()[path(last)][end - last :])
    append(log, 1)
    store(log)
    assert log.read(end, 1) == b"r"
    log.close()
    assert set(disk.opened.values()) == {0}


def test_a_cut_at_the_very_end_of_the_last_segment_keeps_it() -> None:
    disk = MemoryDisk()
    disk.place_file(path(0), b"r" * SEGMENT)
    log = CommitLog(disk, SEGMENT)
    log.cut(SEGMENT)
    assert (log.end, log.capacity_end, log.segment_starts) == (SEGMENT, SEGMENT, [0])
    assert disk.operations == []


def test_a_cut_before_all_segments_leaves_an_empty_log() -> None:
    disk = MemoryDisk()
    for first in (SEGMENT, 2 * SEGMENT):
        disk.place_file(path(first), b"r" * SEGMENT)
    log = CommitLog(disk, SEGMENT)
    log.cut(0)
    assert (log.start, log.end, log.capacity_end, log.segment_starts) == (0, 0, 0, [])
    assert disk.names(FOLDER) == []
    assert set(disk.opened.values()) == {0}


def test_forgotten_segments_are_handed_out_open_and_their_damage_is_forgotten() -> None:
    disk = MemoryDisk()
    log = stored(disk, 400, 400, 400)
    log.log_damage(10, 20)
    log.log_damage(SEGMENT + 10, SEGMENT + 20)
    ((file, name),) = log.take_oldest(1)
    assert (file.read(0, 400), name) == (b"r" * 400, path(0))
    assert getattr(file, "path", "") == path(0)
    assert log.damage.stretches == [(SEGMENT + 10, SEGMENT + 20)]
    assert disk.size_of(name) == SEGMENT, "the caller removes it"
    assert log.read(10, 5) == b""


def test_reading_ahead_is_set_for_old_and_new_segments_and_only_when_it_changes() -> None:
    disk = MemoryDisk()
    disk.looks = []
    log = stored(disk, 400)
    assert looks(disk, "read_ahead False") == [], "it is on by default"
    log.read_ahead(is_wanted=True)
    assert looks(disk, "read_ahead True") == []
    log.read_ahead(is_wanted=False)
    log.read_ahead(is_wanted=False)
    append(log, 400)
    assert looks(disk, "read_ahead False") == [(path(0), 0, 0), (path(SEGMENT), 0, 0)]
    log.read_ahead(is_wanted=True)
    append(log, 400)
    assert looks(disk, "read_ahead True") == [(path(0), 0, 0), (path(SEGMENT), 0, 0)]


def test_a_closed_log_has_closed_all_its_files() -> None:
    disk = MemoryDisk()
    log = stored(disk, 400, 400)
    log.prepare_segment()
    assert sum(disk.opened.values()) == 3
    log.close()
    assert set(disk.opened.values()) == {0}
