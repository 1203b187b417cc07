"""Reading a log: written bytes only, small gaps with their neighbours, and names of segments."""

import pytest
from tests.broker_core.store.test_log_files import SEGMENT, append, looks, path, stored

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.errors import StoreCorrupt
from reliable_mq.testing.memory_disk import MemoryDisk

GAP = 16 * 1024


def test_only_written_bytes_of_the_log_can_be_read() -> None:
    disk = MemoryDisk()
    disk.place_file(path(SEGMENT), b"o" * SEGMENT)
    log = CommitLog(disk, SEGMENT)
    log.reset_end(SEGMENT + 10)
    append(log, 20)
    log.mark_written(SEGMENT + 15)
    assert log.read(SEGMENT - 1, 10) == b"", "before the log"
    assert log.read(-1, 10) == b""
    assert log.read(SEGMENT, 10) == b"o" * 10
    assert log.read(SEGMENT + 14, 1) == b"o"
    assert log.read(SEGMENT + 15, 1) == b"", "not written yet"
    assert log.read(10 * SEGMENT, 1) == b""


def test_a_read_ends_with_its_segment() -> None:
    log = stored(MemoryDisk(), 400, 400)
    assert len(log.read(400, SEGMENT)) == SEGMENT - 400
    assert log.read(SEGMENT, 3) == b"rrr"


def test_places_across_the_end_of_a_segment_are_read_as_far_as_it_goes() -> None:
    log = stored(MemoryDisk(), 500, 300)
    assert log.read_joined((0, 450), (100, 100)) == log.read(0, 100) + log.read(450, 100)
    assert len(log.read_joined((0, 450), (100, 100))) == 100 + SEGMENT - 450


@pytest.mark.parametrize(
    ("begins", "sizes", "reads"),
    [
        ((0, 10, 30), (10, 20, 5), [(0, 35)]),  # side by side
        ((0, 10 + GAP), (10, 20), [(0, GAP + 30)]),
        ((0, 11 + GAP), (10, 20), [(0, 10), (11 + GAP, 20)]),
        ((0, 10 + 2 * GAP, 20 + 2 * GAP), (10, 10, 10), [(0, 30 + 2 * GAP)]),
        ((0, 11 + 2 * GAP, 21 + 2 * GAP), (10, 10, 10), [(0, 10), (11 + 2 * GAP, 20)]),
        ((7,), (3,), [(7, 3)]),
    ],
)
def test_small_gaps_between_places_are_read_with_them(
    begins: tuple[int, ...], sizes: tuple[int, ...], reads: list[tuple[int, int]]
) -> None:
    disk = MemoryDisk()
    log = stored(disk, 4 * GAP, segment=5 * GAP)
    disk.looks = []
    assert len(log.read_joined(begins, sizes)) == sum(sizes)
    assert sorted(looks(disk, "read")) == [(path(0), at, size) for at, size in reads]


def test_the_segment_of_an_offset_is_found_or_the_offset_is_refused() -> None:
    disk = MemoryDisk()
    for first in (SEGMENT, 2 * SEGMENT):
        disk.place_file(path(first), bytes([first // SEGMENT]) * SEGMENT)
    log = CommitLog(disk, SEGMENT)
    for offset, first in (
        *((SEGMENT, SEGMENT), (2 * SEGMENT - 1, SEGMENT)),
        *((2 * SEGMENT, 2 * SEGMENT), (3 * SEGMENT - 1, 2 * SEGMENT)),
    ):
        found, segment = log.segment_at(offset)
        assert (found, segment.read(0, 1)) == (first, bytes([first // SEGMENT]))
    for offset in (-1, 0, SEGMENT - 1, 3 * SEGMENT):
        with pytest.raises(StoreCorrupt, match=f"no segment holds offset {offset}"):
            log.segment_at(offset)


@pytest.mark.parametrize(
    ("offset", "count"),
    [(0, 3), (SEGMENT - 1, 3), (SEGMENT, 2), (2 * SEGMENT, 1), (9 * SEGMENT, 1), (-1, 3)],
)
def test_segments_with_bytes_from_an_offset_on_are_named(offset: int, count: int) -> None:
    log = stored(MemoryDisk(), 400, 400, 400)
    assert len(log.segments_from(offset)) == count


def test_damage_is_named_once_by_its_file_and_place(caplog: pytest.LogCaptureFixture) -> None:
    log = stored(MemoryDisk(), 400, 400)
    log.log_damage(SEGMENT + 30, SEGMENT + 130)
    log.log_damage(SEGMENT + 40, SEGMENT + 50)
    (told,) = caplog.messages
    assert told.startswith(
        f"{path(SEGMENT)}: no valid record at 30 (log offset {SEGMENT + 30}), 100 bytes are damaged"
    )
