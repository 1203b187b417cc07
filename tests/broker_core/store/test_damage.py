"""A damaged file is refused: file and offset are named, nothing is changed. A torn tail is cut off.

Single damaged records, which are gone around, are in `test_damaged_records`.
"""

import struct
from copy import deepcopy

import msgspec
import pytest
from tests.broker_core.store.store_life import (
    QUEUE_FILE_SIZE,
    SEGMENT_SIZE,
    Life,
    flush,
    log_records,
    message,
    new_store,
)

from reliable_mq.broker_core.store.checkpoint import PATH as CHECKPOINT_PATH
from reliable_mq.broker_core.store.message_store import ABORT_PATH
from reliable_mq.broker_core.store.progress import FORMAT
from reliable_mq.broker_core.store.progress import PATH as PROGRESS_PATH
from reliable_mq.errors import StoreCorrupt, StoreError
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.record import Record

FIRST = "commitlog/00000000000000000000"
SECOND = "commitlog/00000000000000002048"


def grown_store(*, is_closed: bool, sync: bool = True) -> tuple[Life, list[Record]]:
    """Return a store of four segments or more, and the records in it."""
    disk = MemoryDisk()
    life = Life(disk, seed=4, sync=sync)
    store = life.open()
    while len(store.log.segment_starts) < 4:
        life.turn(store)
    records = log_records(store)
    if is_closed:
        store.close()
    return life, records


def damage(disk: MemoryDisk, path: str, at: int, data: bytes) -> None:
    content = bytearray(disk.files()[path])
    content[at : at + len(data)] = data
    disk.place_file(path, bytes(content))


def assert_refused(disk: MemoryDisk, *texts: str, sync: bool = True) -> None:
    before, operations = disk.files(), len(disk.operations)
    with pytest.raises(StoreError) as refusal:
        new_store(disk, sync=sync).open()
    for text in texts:
        assert text in str(refusal.value)
    assert disk.files() == before
    assert disk.operations[operations:] == []


@pytest.mark.parametrize("sync", [True, False], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("garbage", [b"\0", b"\xff"], ids=["zeros", "ones"])
def test_a_segment_that_is_damaged_to_its_end_is_refused_when_later_ones_are_there(
    garbage: bytes, is_closed: bool, sync: bool
) -> None:
    life, records = grown_store(is_closed=is_closed, sync=sync)
    last_first = records[-1].commit_log_offset // SEGMENT_SIZE * SEGMENT_SIZE
    for record in records:
        place = record.commit_log_offset
        at = place % SEGMENT_SIZE
        if place >= last_first:
            break
        path = f"commitlog/{place - at:020d}"
        intact = life.disk.files()[path]

        damage(life.disk, path, at, garbage * (SEGMENT_SIZE - at))

        assert_refused(life.disk, path, f"at {at} ", f"log offset {place}", sync=sync)
        life.disk.place_file(path, intact)
    life.check().close()


@pytest.mark.parametrize("sync", [True, False], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_hole_is_damage_after_a_kill_and_a_torn_tail_after_a_power_loss(
    sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Given that nothing else knows the records behind it: no queue, no note, no checkpoint."""
    disk = MemoryDisk()
    life = Life(disk, seed=4, sync=sync)
    store = life.open()
    for _ in range(2):
        life.turn(store)
    records = log_records(store)
    for path in [path for path in disk.files() if path.startswith("consumequeue")]:
        disk.remove(path)
    damage(disk, FIRST, records[1].commit_log_offset + 90, b"\xff\xff")

    killed = new_store(deepcopy(disk), sync=sync)
    killed.open()
    assert killed.log.end == store.log.end
    assert f"(log offset {records[1].commit_log_offset})" in caplog.text
    assert "torn" not in caplog.text

    disk.boot += 1
    life.check(keeps_acknowledged=False).close()
    assert len(life.appended) == 1
    assert f"the log ends at {records[1].commit_log_offset}, where a record is torn" in caplog.text


def test_a_damaged_blank_before_later_segments_is_refused() -> None:
    life, records = grown_store(is_closed=True)
    last = [r for r in records if r.commit_log_offset < SEGMENT_SIZE][-1]

    damage(life.disk, FIRST, last.commit_log_offset + last.size, b"\0" * 8)

    assert_refused(life.disk, FIRST, f"log offset {last.commit_log_offset + last.size}")


def test_a_lost_segment_is_refused_whichever_it_is() -> None:
    life, _records = grown_store(is_closed=True)
    segments = [path for path in life.disk.files() if path.startswith("commitlog/")]
    for path in segments:
        content = life.disk.files()[path]
        if not any(content):
            continue  # made ahead of need
        life.disk.remove(path)
        assert_refused(life.disk, path, "missing")
        life.disk.place_file(path, content)
    life.check().close()


def test_all_segments_lost_is_refused() -> None:
    life, _records = grown_store(is_closed=True)
    for path in life.disk.files():
        if path.startswith("commitlog/"):
            life.disk.remove(path)

    assert_refused(life.disk, FIRST, "missing")


@pytest.mark.parametrize("size", [1, SEGMENT_SIZE - 1, SEGMENT_SIZE + 1, SEGMENT_SIZE * 2])
def test_a_segment_of_another_size_is_refused(size: int) -> None:
    life, _records = grown_store(is_closed=True)

    life.disk.place_file(SECOND, bytes(size))

    advice = "cut short" if size < SEGMENT_SIZE else "mappedFileSizeCommitLog"
    assert_refused(life.disk, SECOND, f"{size} bytes", advice)


def test_a_consume_queue_file_of_another_size_is_refused() -> None:
    life, _records = grown_store(is_closed=True)
    path = "consumequeue/orders/0/00000000000000000000"

    life.disk.place_file(path, bytes(QUEUE_FILE_SIZE + 20))

    assert_refused(life.disk, path, "mappedFileSizeConsumeQueue")


def test_a_record_of_a_newer_version_is_refused() -> None:
    life, records = grown_store(is_closed=False)
    last = records[-1]
    path = f"commitlog/{last.commit_log_offset // SEGMENT_SIZE * SEGMENT_SIZE:020d}"

    damage(
        life.disk, path, last.commit_log_offset % SEGMENT_SIZE + 4, struct.pack(">I", 0xDAA320AF)
    )

    assert_refused(life.disk, path, "newer format", f"log offset {last.commit_log_offset}")


def test_a_store_of_a_newer_format_is_refused() -> None:
    life, _records = grown_store(is_closed=True)

    life.disk.place_file(
        PROGRESS_PATH, msgspec.json.encode({"format": FORMAT + 1, "queues": "other"})
    )

    assert_refused(life.disk, PROGRESS_PATH, "newer reliable_mq", f"format {FORMAT + 1}")


def test_records_whose_queue_offsets_do_not_follow_are_refused_when_a_queue_is_rebuilt() -> None:
    life, records = grown_store(is_closed=True)
    of_queue = [r for r in records if (r.topic, r.queue_id) == ("orders", 0)]
    path = f"commitlog/{of_queue[2].commit_log_offset // SEGMENT_SIZE * SEGMENT_SIZE:020d}"
    damage(
        life.disk, path, of_queue[2].commit_log_offset % SEGMENT_SIZE + 20, struct.pack(">q", 77)
    )
    life.disk.remove("consumequeue/orders/0/00000000000000000000")

    assert_refused(life.disk, "orders queue 0", str(of_queue[2].commit_log_offset))


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_a_torn_tail_is_cut_and_the_store_goes_on(
    is_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    size = grown_store(is_closed=True)[1][-1].size
    for kept in (0, 1, 7, 8, 36, 90):
        life, records = grown_store(is_closed=is_closed)
        last = records[-1]
        path = f"commitlog/{last.commit_log_offset // SEGMENT_SIZE * SEGMENT_SIZE:020d}"
        damage(life.disk, path, last.commit_log_offset % SEGMENT_SIZE + kept, bytes(size - kept))

        store = life.check(keeps_acknowledged=False)

        assert len(life.appended) == len(records) - 1
        life.turn(store)
        store.close()
        life.check().close()
        if is_closed:
            assert "acknowledged messages are missing" in caplog.text


def test_a_record_with_a_zero_byte_in_a_property_survives_a_kill() -> None:
    life, _records = grown_store(is_closed=False)
    store = life.check()
    store.append(message("orders", 0, b"body", tag="a\0b"), life.now_ms)
    flush(store)
    end = store.log.end

    store = new_store(life.disk)
    store.open()

    assert store.log.end == end


def test_a_store_whose_note_is_garbage_opens_without_it() -> None:
    named = [
        b'{"format":1,"bootId":"","isSyncFlush":true,"logStart":0,"logEnd":0,"lastRecord":-1,'
        b'"lastTimeMs":0,"queues":{"%s":{"0":[0,0,-1]}}}' % name
        for name in (b"x" * 256, b"../x", b"a/b", b"")
    ]
    for garbage in (b"", b"{", b"[]", b'{"format": "x"}', b'{"format":1,"queues":7}', *named):
        for is_closed in (True, False):
            life, _records = grown_store(is_closed=is_closed)
            life.disk.place_file(PROGRESS_PATH, garbage)
            life.check().close()


def test_a_checkpoint_that_is_cut_short_says_nothing_and_is_written_anew() -> None:
    life, _records = grown_store(is_closed=True)
    life.disk.place_file(CHECKPOINT_PATH, life.disk.files()[CHECKPOINT_PATH][:24])

    life.check().close()

    assert len(life.disk.files()[CHECKPOINT_PATH]) == 4096


def test_a_refused_store_opens_again_when_the_segment_is_restored() -> None:
    life, _records = grown_store(is_closed=False)
    intact = life.disk.files()[FIRST]
    damage(life.disk, FIRST, 90, b"\xff" * (SEGMENT_SIZE - 90))
    with pytest.raises(StoreCorrupt):
        life.open()
    assert life.disk.size_of(ABORT_PATH) > 0

    life.disk.place_file(FIRST, intact)

    life.check().close()
