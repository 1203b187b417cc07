"""Checkpoints of a store: what they sync and claim, and what is valid when there is no room."""

import errno

import pytest
from tests.broker_core.store.store_life import SEGMENT_SIZE
from tests.broker_core.store.test_message_store import (
    NOW,
    changed,
    indexed,
    opened,
    progress,
    send,
)

from reliable_mq.broker_core.store.checkpoint import load_checkpoint
from reliable_mq.broker_core.store.disk import FileText
from reliable_mq.broker_core.store.message_store import ABORT_PATH
from reliable_mq.testing.memory_disk import MemoryDisk


def test_the_size_of_what_is_not_noted_is_counted_from_the_last_checkpoint() -> None:
    store = opened(MemoryDisk())
    send(store, b"one")
    end = store.log.end
    assert store.unnoted_size == end
    store.checkpoint()
    assert store.unnoted_size == 0
    send(store, b"two")
    assert store.unnoted_size == store.log.end - end


def test_a_checkpoint_syncs_what_is_new_and_one_without_news_writes_nothing() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    send(store, *[b"b" * 500] * 4)
    send(store, b"other", topic="others")
    begin = len(disk.operations)
    store.checkpoint()
    assert sorted(set(changed(disk, begin, "sync"))) == [
        "checkpoint",
        *(f"commitlog/{first:020d}" for first in (0, SEGMENT_SIZE)),
        *(f"consumequeue/{topic}/0/{0:020d}" for topic in ("orders", "others")),
    ]
    assert changed(disk, begin, "text") == ["config/storeProgress.json"]
    times = load_checkpoint(disk)
    assert (times.commit_log_time_ms, times.consume_queue_time_ms) == (NOW + 3, NOW + 3)

    begin = len(disk.operations)
    store.checkpoint()
    assert changed(disk, begin, "text") == changed(disk, begin, "write") == []

    queue = store.queue("orders", 0)
    assert queue is not None
    send(store, b"last")
    begin = len(disk.operations)
    store.checkpoint()
    assert f"commitlog/{0:020d}" not in changed(disk, begin, "sync")
    assert changed(disk, begin, "text") == ["config/storeProgress.json"]


def test_a_checkpoint_claims_what_was_there_when_it_began() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    send(store, b"one")
    end, work = store.log.end, store.begin_checkpoint()
    send(store, b"two")
    work()
    assert progress(disk).log_end == end
    assert store.unnoted_size == store.log.end - end


def test_a_checkpoint_of_a_mark_claims_what_was_there_then_and_writes_nothing_itself() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    send(store, b"one")
    mark, end = store.mark(), store.log.end
    send(store, b"two", topic="others")
    store.upkeep.flush_some(mark.waiting)
    begin = len(disk.operations)
    store.begin_checkpoint(mark)()
    assert progress(disk).log_end == end
    assert not any(path.startswith("consumequeue/") for path in changed(disk, begin, "write"))
    assert store.upkeep.unwritten == 1


def test_a_checkpoint_of_a_mark_whose_queues_had_no_room_claims_nothing_new() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    send(store, b"one")
    mark = store.mark()
    disk.fail_at, disk.error = len(disk.operations), errno.ENOSPC
    store.upkeep.flush_some(mark.waiting)
    store.begin_checkpoint(mark)()
    assert progress(disk).log_end == 0
    store.checkpoint()
    assert progress(disk).log_end == store.log.end


def test_full_index_files_are_synced_with_a_checkpoint_and_their_time_is_noted() -> None:
    disk = MemoryDisk()
    store = indexed(disk, entries=4)  # three can be used; a message here has a tag alone
    send(store, b"0", b"1")
    store.index_some(NOW)
    store.checkpoint()
    assert load_checkpoint(disk).index_time_ms == 0, "no file is full"
    send(store, *[b"%d" % number for number in range(8)])
    while not store.is_indexed:
        store.index_some(NOW)
    names = disk.names("index")
    begin = len(disk.operations)
    store.checkpoint()
    synced = [path for path in changed(disk, begin, "sync") if path.startswith("index/")]
    assert synced == [f"index/{name}" for name in names[:3]]
    assert load_checkpoint(disk).index_time_ms == NOW + 6
    send(store, b"more")
    store.checkpoint()
    assert load_checkpoint(disk).index_time_ms == NOW + 6, "it stays"


def test_the_index_follows_what_is_dispatched() -> None:
    disk = MemoryDisk()
    store = indexed(disk)
    assert (store.index_lag, store.is_indexed) == (0, True)
    send(store, b"one")
    assert (store.index_lag, store.is_indexed) == (store.log.end, False)
    store.index_some(NOW)
    assert (store.index_lag, store.is_indexed) == (0, True)
    disk.looks = []
    for _ in range(3):  # it releases the memory of its slots once
        store.index_some(NOW)
    assert [look.verb for look in disk.looks] == ["release"]


class NotelessDisk(MemoryDisk):
    """A disk that writes no text when it is told so."""

    text_error = 0

    def write_text(self, path: str, text: FileText) -> None:
        if self.text_error:
            raise OSError(self.text_error, "no", path)
        super().write_text(path, text)


def test_without_room_for_a_note_the_last_one_stays_valid(caplog: pytest.LogCaptureFixture) -> None:
    disk = NotelessDisk()
    store = opened(disk)
    send(store, b"one")
    disk.text_error = errno.ENOSPC
    store.checkpoint()
    disk.text_error = 0
    assert progress(disk).log_end == 0
    assert "no room for a checkpoint" in caplog.text
    assert store.unnoted_size == store.log.end
    store.checkpoint()
    assert progress(disk).log_end == store.log.end


def test_a_note_that_fails_for_another_reason_is_an_error() -> None:
    disk = NotelessDisk()
    store = opened(disk)
    send(store, b"one")
    disk.text_error = errno.EIO
    with pytest.raises(OSError, match="no"):
        store.checkpoint()


def test_a_store_that_has_no_room_for_its_last_checkpoint_stays_marked_as_in_use() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    send(store, b"one")
    disk.fail_at, disk.error = len(disk.operations), errno.ENOSPC  # the file of the queue
    store.close()
    assert disk.size_of(ABORT_PATH) >= 0
    assert opened(disk).bounds("orders", 0) == (0, 1)


@pytest.mark.parametrize("is_record_kept", [True, False])
def test_without_room_for_units_the_new_start_of_the_log_is_noted_nevertheless(
    is_record_kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    store = opened(disk)
    send(store, *[b"b" * 500] * (10 if is_record_kept else 2))
    store.checkpoint()
    before = progress(disk)
    send(store, *[b"b" * 500] * 10)
    store.expire(1)
    start = store.log.start
    disk.fail_at, disk.error = len(disk.operations), errno.ENOSPC
    store.checkpoint()
    assert "no room for the units of all queues" in caplog.text
    note = progress(disk)
    assert note.log_start == start == SEGMENT_SIZE
    if is_record_kept:
        assert (note.log_end, note.last_record) == (before.log_end, before.last_record)
    else:
        assert (note.log_end, note.last_record) == (start, -1)
    assert store.is_start_noted
    store.checkpoint()
    assert progress(disk).log_end == store.log.end
