"""The log's segments: names, rolls and blanks, and the order of its promises (S1)."""

from random import Random

import pytest
from tests.broker_core.store.store_life import Life, flush, message, new_store

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.errors import InvariantBroken, StoreCorrupt
from reliable_mq.testing.memory_disk import MemoryDisk, MemoryFile
from reliable_mq.wire.record import BLANK_SIZE, encode_blank

SEGMENT = 512
SECOND = f"commitlog/{SEGMENT:020d}"


def append(log: CommitLog, size: int) -> int:
    offset = log.room_for(size)
    log.add(b"r" * size)
    return offset


def write_all(log: CommitLog) -> None:
    batch = log.take_batch()
    assert batch is not None
    CommitLog.write_batch(batch)
    CommitLog.sync(batch)
    log.mark_durable(batch.end)


def test_a_record_is_put_where_it_fits_with_a_blank_behind_it() -> None:
    """Given every possible rest of a segment, then a record takes it or a blank does, whole."""
    for rest in range(BLANK_SIZE, SEGMENT - 100):
        for size in (100, rest - BLANK_SIZE, rest - BLANK_SIZE + 1):
            if size < 1:
                continue
            disk = MemoryDisk()
            log = CommitLog(disk, SEGMENT)
            append(log, SEGMENT - rest)
            offset = append(log, size)
            write_all(log)
            content = disk.files()["commitlog/" + "0" * 20]

            if size + BLANK_SIZE <= rest:
                assert offset == SEGMENT - rest
                assert SECOND not in disk.files()
            else:
                assert offset == SEGMENT
                assert content[SEGMENT - rest :][:BLANK_SIZE] == encode_blank(rest)
                assert content[SEGMENT - rest + BLANK_SIZE :] == bytes(rest - BLANK_SIZE)
                assert disk.files()[SECOND][:size] == b"r" * size


def test_a_store_rolls_at_every_possible_rest_and_recovers() -> None:
    record_size = 91 + len("orders") + len("TAGS\x01paid\x02")
    for body_size in range(1, 140):
        disk = MemoryDisk()
        life = Life(disk, seed=1)
        store = new_store(disk, segment_size=SEGMENT)
        store.open()
        places = []
        for size in (body_size, 200, 5):
            places.append(store.append(message("orders", 0, b"x" * size), life.now_ms))
            flush(store)
        end = store.log.end

        again = new_store(disk, segment_size=SEGMENT)
        again.open()

        assert again.log.end == end
        for place, size in zip(places, (body_size, 200, 5), strict=True):
            record = again.read_record(place.commit_log_offset)
            assert record is not None
            assert (len(record.body), record.size) == (size, record_size + size)


def test_one_batch_may_span_segments_and_is_written_in_log_order() -> None:
    disk = MemoryDisk()
    log = CommitLog(disk, SEGMENT)
    offsets = [append(log, 200) for _ in range(6)]
    batch = log.take_batch()

    assert batch is not None
    assert offsets == [0, 200, 512, 712, 1024, 1224]
    assert [write.at for write in batch.writes] == [0, 0, 0]
    assert batch.end == log.end == 1424
    assert log.take_batch() is None


def test_a_record_too_large_for_any_segment_still_gets_one_to_itself() -> None:
    log = CommitLog(MemoryDisk(), SEGMENT)

    assert append(log, SEGMENT - BLANK_SIZE) == 0
    assert append(log, SEGMENT - BLANK_SIZE) == SEGMENT


def test_the_next_segment_is_made_ahead_when_the_newest_is_half_full() -> None:
    disk = MemoryDisk()
    log = CommitLog(disk, SEGMENT)
    append(log, SEGMENT // 2 - 1)
    log.prepare_segment()
    assert SECOND not in disk.files()

    append(log, 100)
    write_all(log)
    log.prepare_segment()
    assert disk.size_of(SECOND) == SEGMENT
    operations = len(disk.operations)
    log.prepare_segment()
    append(log, 400)

    assert len(disk.operations) == operations
    assert log.segment_starts == [0, SEGMENT]


def test_a_segment_that_was_made_too_late_is_let_go() -> None:
    disk = MemoryDisk()
    log = CommitLog(disk, SEGMENT)
    append(log, 300)
    log.prepare_segment()
    for _ in range(4):
        append(log, 400)
        log.prepare_segment()

    assert log.segment_starts == [0, 512, 1024, 1536, 2048]


def test_what_was_not_written_cannot_be_read() -> None:
    log = CommitLog(MemoryDisk(), SEGMENT)
    append(log, 10)

    assert log.read(0, 10) == b""
    write_all(log)
    assert log.read(0, 10) == b"r" * 10
    assert log.read(10, 1) == b""


def test_places_are_read_as_one_by_one_whatever_lies_between_them() -> None:
    segment_size = 200_000
    log = CommitLog(MemoryDisk(), segment_size)
    random = Random(4)
    begins, sizes = [], []
    while log.end < 3 * segment_size:
        size = random.choice((1, 100, 5_000, 40_000))
        begin = log.room_for(size)
        log.add(random.randbytes(size))
        if random.random() < 0.5:
            begins.append(begin)
            sizes.append(size)
    write_all(log)

    for first in range(len(begins)):
        for count in (1, 2, 7, len(begins)):
            some = slice(first, first + count)
            expected = b"".join(map(log.read, begins[some], sizes[some]))
            assert log.read_joined(tuple(begins[some]), tuple(sizes[some])) == expected


def test_places_that_a_damaged_queue_names_read_as_what_is_there() -> None:
    log = CommitLog(MemoryDisk(), SEGMENT)
    append(log, 300)
    write_all(log)

    assert log.read_joined((0, 2**40), (100, 100)) == b"r" * 100
    assert log.read_joined((200, 100), (100, 100)) == b"r" * 200
    assert log.read_joined((200, 100), (100, -100)) == b"r" * 100


def test_a_promise_beyond_the_end_breaks_the_invariant() -> None:
    log = CommitLog(MemoryDisk(), SEGMENT)
    append(log, 10)

    with pytest.raises(InvariantBroken, match="S1"):
        log.mark_durable(11)


def test_a_segment_is_forgotten_only_when_all_of_it_is_durable_and_never_the_newest() -> None:
    log = CommitLog(MemoryDisk(), SEGMENT)
    for _ in range(3):
        append(log, 400)
    log.mark_written(log.end)
    assert log.take_oldest(9) == []

    log.mark_durable(SEGMENT - 1)
    assert log.take_oldest(9) == []
    log.mark_durable(SEGMENT)
    assert [path for _, path in log.take_oldest(9)] == ["commitlog/" + "0" * 20]
    assert log.start == SEGMENT

    log.mark_durable(log.end)
    assert [path for _, path in log.take_oldest(9)] == [SECOND]
    assert log.segment_starts == [2 * SEGMENT]


def test_no_more_segments_are_forgotten_than_are_asked_for() -> None:
    log = CommitLog(MemoryDisk(), SEGMENT)
    for _ in range(5):
        append(log, 400)
    write_all(log)
    assert len(log.take_oldest(2)) == 2
    assert log.take_oldest(0) == []
    assert log.segment_starts == [2 * SEGMENT, 3 * SEGMENT, 4 * SEGMENT]


def test_a_promise_that_comes_late_takes_nothing_back() -> None:
    log = CommitLog(MemoryDisk(), SEGMENT)
    append(log, 30)
    log.mark_written(20)
    log.mark_written(10)
    assert (log.durable, log.written) == (0, 20)
    log.mark_durable(25)
    log.mark_durable(5)
    assert (log.durable, log.written) == (25, 25)


def test_a_record_of_another_size_than_its_room_breaks_the_invariant() -> None:
    log = CommitLog(MemoryDisk(), SEGMENT)
    log.room_for(10)

    with pytest.raises(InvariantBroken, match="S1"):
        log.add(b"r" * 9)


def test_a_room_that_nobody_fills_leaves_the_log_as_it_was() -> None:
    log = CommitLog(MemoryDisk(), SEGMENT)
    append(log, 10)
    log.room_for(20)
    write_all(log)

    assert (log.end, log.durable) == (10, 10)
    assert append(log, 5) == 10


@pytest.mark.parametrize("sync", [True, False], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_nothing_is_dispatched_before_it_is_safe(sync: bool) -> None:
    store = new_store(MemoryDisk(), sync=sync)
    store.open()
    place = store.append(message("orders", 0, b"x"), 1)
    batch = store.take_batch()
    assert batch is not None
    CommitLog.write_batch(batch)
    if sync:
        store.log.mark_written(place.end)

    with pytest.raises(InvariantBroken, match="D1"):
        store.dispatch_up_to(place.end)


@pytest.mark.parametrize(
    ("sizes", "advice"),
    [
        ([512, 200], "the file is cut short; restore it from a copy"),
        ([100], "the file is cut short; restore it from a copy"),
        ([4096], "set mappedFileSizeCommitLog to its value"),
        ([1024, 1024], "set mappedFileSizeCommitLog to its value"),
    ],
)
def test_a_file_of_another_size_is_told_apart_from_another_setting(
    sizes: list[int], advice: str
) -> None:
    disk = MemoryDisk()
    for number, size in enumerate(sizes):
        disk.place_file(f"commitlog/{number * sizes[0]:020d}", bytes(size))

    with pytest.raises(StoreCorrupt, match=advice):
        CommitLog(disk, 8192 if sizes == [4096] else SEGMENT)


def test_a_log_that_was_cut_at_its_begin_can_begin_elsewhere() -> None:
    """Seed 1710 of the simulation: the slave's log was cut at 0, and its master's begins later."""
    disk = MemoryDisk()
    log = CommitLog(disk, SEGMENT)
    append(log, 100)
    write_all(log)
    with pytest.raises(InvariantBroken, match="S1: the log 0 to 100 began"):
        log.begin_at(2 * SEGMENT)
    log.cut(0)

    log.begin_at(2 * SEGMENT)
    assert append(log, 100) == log.start == 2 * SEGMENT
    write_all(log)
    assert list(disk.files()) == [f"commitlog/{2 * SEGMENT:020d}"]


@pytest.mark.parametrize("seed", range(10))
def test_a_loss_of_power_leaves_no_segment_without_the_one_before(seed: int) -> None:
    """Several were begun without a sync between, as by a slave's copy of small segments."""
    disk = MemoryDisk()
    log = CommitLog(disk, SEGMENT)
    for _ in range(4):
        append(log, SEGMENT // 2 + 1)
    batch = log.take_batch()
    assert batch is not None
    CommitLog.write_batch(batch)
    disk.lose_power(Random(seed))

    starts = CommitLog(disk, SEGMENT).segment_starts
    assert starts == [number * SEGMENT for number in range(len(starts))]


def test_a_segment_that_cannot_be_synced_before_the_next_one_ends_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_file: MemoryFile) -> None:
        raise OSError("Input/output error")

    log = CommitLog(MemoryDisk(), SEGMENT)
    append(log, SEGMENT // 2 + 1)
    monkeypatch.setattr(MemoryFile, "sync", fail)
    with pytest.raises(InvariantBroken, match="Input/output error"):
        append(log, SEGMENT // 2 + 1)
