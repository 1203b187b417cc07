"""A store as its broker uses it: opened, dispatched, deleted from, checkpointed, closed."""

import errno

import pytest
from tests.broker_core.store.store_life import (
    DELAYS_MS,
    HOST,
    QUEUE_FILE_SIZE,
    SEGMENT_SIZE,
    flush,
    message,
    new_store,
)

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.lanes import Arrivals
from reliable_mq.broker_core.store.message_index import IndexSizes
from reliable_mq.broker_core.store.message_store import ABORT_PATH, MessageStore
from reliable_mq.broker_core.store.progress import QueueExtent, StoreProgress, load_progress
from reliable_mq.testing.memory_disk import MemoryDisk

NOW = 1_700_000_000_000


def opened(disk: MemoryDisk, *, sync: bool = True) -> MessageStore:
    store = new_store(disk, sync=sync)
    store.open()
    return store


def indexed(disk: MemoryDisk, entries: int = 10) -> MessageStore:
    """Open a store with an index whose files have this many entries."""
    store = MessageStore(
        disk,
        segment_size=SEGMENT_SIZE,
        queue_file_size=QUEUE_FILE_SIZE,
        store_host=HOST,
        delays_ms=DELAYS_MS,
        index_sizes=IndexSizes(5, entries),
    )
    store.open()
    return store


def send(
    store: MessageStore, *bodies: bytes, topic: str = "orders", queue_id: int = 0
) -> list[int]:
    """Store messages; return their log offsets."""
    places = [
        store.append(message(topic, queue_id, body), NOW + number)
        for number, body in enumerate(bodies)
    ]
    flush(store)
    return [place.commit_log_offset for place in places]


def progress(disk: MemoryDisk) -> StoreProgress:
    note = load_progress(disk)
    assert note is not None
    return note


def changed(disk: MemoryDisk, begin: int, verb: str) -> list[str]:
    """Return the paths of the operations of one kind since an operation."""
    return [each.path for each in disk.operations[begin:] if each.verb == verb]


def bodies(store: MessageStore, offsets: list[int]) -> list[bytes | None]:
    records = [store.read_record(offset) for offset in offsets]
    return [record.body if record else None for record in records]


def test_a_new_store_is_empty_and_marked_as_in_use_until_it_is_closed() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    assert (store.dispatched, store.bounds("orders", 0), store.queue("orders", 0)) == (
        0,
        (0, 0),
        None,
    )
    assert store.read_record(0) is None
    assert (store.index_lag, store.is_indexed, store.unnoted_size) == (0, True, 0)
    assert store.is_start_noted
    assert store.take_batch() is None
    assert disk.read_text(ABORT_PATH) == "7", "the process"
    store.close()
    assert disk.size_of(ABORT_PATH) == -1
    assert set(disk.opened.values()) <= {0}
    assert progress(disk) == StoreProgress(boot_id="boot 1", is_sync_flush=True)


def test_a_closed_store_has_closed_all_files() -> None:
    disk = MemoryDisk()
    store = indexed(disk)
    send(store, *[b"b" * 100] * 30)
    store.index_some(NOW)
    store.close()
    assert set(disk.opened.values()) == {0}
    assert disk.size_of(ABORT_PATH) == -1


@pytest.mark.parametrize("mark", ["", "7"])
def test_an_empty_mark_of_use_is_a_mark(mark: str) -> None:
    """A hole before valid records is damage after a clean stop, a torn end after a power loss."""
    disk = MemoryDisk()
    store = opened(disk, sync=False)
    send(store, b"one", b"two")
    store.checkpoint()
    offsets = send(store, b"three", b"four")
    disk.place_file(ABORT_PATH, mark.encode())
    first, segment = store.log.segment_at(offsets[0])
    segment.write(offsets[0] - first + 88, (b"\xff",))
    disk.boot += 1
    assert opened(disk, sync=False).log.end == offsets[0]


def test_what_was_dispatched_is_known_again_when_a_store_opens() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    offsets = send(store, b"one", b"two")
    end = store.log.end
    store.close()
    again = opened(disk)
    assert (again.dispatched, again.log.end, again.bounds("orders", 0)) == (end, end, (0, 2))
    assert (again.unnoted_size, again.is_start_noted) == (0, True)
    note = progress(disk)
    assert (note.log_start, note.log_end, note.last_record) == (0, end, offsets[1])
    assert note.last_time_ms == NOW + 1
    assert note.queues == {"orders": {0: QueueExtent(0, 2, offsets[1])}}
    assert again.append(message("orders", 0, b"three"), 5).queue_offset == 2
    flush(again)
    record = again.read_record(end)
    assert record is not None
    assert record.store_time_ms == NOW + 1, "never before the message before it"


def test_batches_are_dispatched_up_to_an_end_each_with_its_units_in_order() -> None:
    store = opened(MemoryDisk())
    told: list[tuple[str, int, int]] = []

    def tell(arrivals: Arrivals) -> None:
        told.append((arrivals.topic, arrivals.queue_id, arrivals.first))

    ends = []
    for queue_ids in ((0, 1, 0), (1,), (0,)):
        for queue_id in queue_ids:
            store.append(message("orders", queue_id, b"x"), NOW)
        batch = store.take_batch()
        assert batch is not None
        CommitLog.write_batch(batch)
        ends.append(batch.end)
    store.log.mark_durable(ends[-1])
    store.dispatch_up_to(ends[1] - 1, tell)
    assert (store.dispatched, told) == (ends[0], [("orders", 0, 0), ("orders", 1, 0)])
    store.dispatch_up_to(ends[1], tell)
    assert (store.dispatched, told[2:]) == (ends[1], [("orders", 1, 1)])
    store.dispatch_up_to(ends[1], tell)
    store.dispatch_up_to(ends[2] + 5, tell)
    assert (store.dispatched, told[3:]) == (ends[2], [("orders", 0, 2)])
    assert (store.bounds("orders", 0), store.bounds("orders", 1)) == ((0, 3), (0, 2))


def test_a_deleted_topic_cannot_be_read_and_its_queues_go_on_in_a_new_file() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    offsets = send(store, b"one", b"two", b"three")
    end = store.log.end
    others = send(store, b"other", topic="others")
    assert store.delete_topic("orders")
    assert not store.delete_topic("nobody")
    assert bodies(store, offsets + others) == [None, None, None, b"other"]
    assert store.bounds("orders", 0) == (5, 5)
    assert (
        store.deletions.dump() == f'{{"topics":{{"orders":{{"0":{{"logEnd":{end},"begin":5}}}}}}}}'
    )
    new = send(store, b"new")
    assert (store.bounds("orders", 0), bodies(store, new)) == ((5, 6), [b"new"])
    for file, path in store.upkeep.take_restarted():
        file.close()
        disk.remove(path)
    text = store.deletions.dump()
    store.close()
    again = new_store(disk)
    again.deletions.load(text)
    again.open()
    assert again.bounds("orders", 0) == (5, 6)
    assert bodies(again, offsets + others + new) == [None, None, None, b"other", b"new"]


def test_files_of_deleted_messages_that_a_crash_left_are_removed() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    send(store, b"one")
    store.delete_topic("orders")
    text = store.deletions.dump()
    store.checkpoint()
    assert disk.names("consumequeue/orders/0") == []
    disk.place_file(f"consumequeue/orders/0/{0:020d}", bytes(8) + (99).to_bytes(4) + bytes(88))
    again = new_store(disk)
    again.deletions.load(text)
    again.open()
    assert disk.names("consumequeue/orders/0") == []
    assert again.bounds("orders", 0) == (5, 5)


def test_messages_that_are_not_dispatched_yet_are_deleted_with_their_topic() -> None:
    store = opened(MemoryDisk())
    places = [store.append(message(topic, 0, b"x"), NOW) for topic in ("orders", "others")]
    batch = store.take_batch()
    places.append(store.append(message("orders", 0, b"y"), NOW))
    store.delete_topic("orders")
    assert batch is not None
    CommitLog.write_batch(batch)
    store.log.mark_durable(batch.end)
    store.dispatch_up_to(batch.end)
    flush(store)
    assert bodies(store, [place.commit_log_offset for place in places]) == [None, b"x", None]
    assert (store.bounds("orders", 0), store.bounds("others", 0)) == ((5, 5), (0, 1))


def test_the_start_of_the_log_is_noted_by_the_checkpoint_that_follows_an_expiry() -> None:
    disk = MemoryDisk()
    store = indexed(disk)
    send(store, *[b"b" * 100] * 40)
    while not store.is_indexed:
        store.index_some(NOW)
    store.checkpoint()
    assert store.expire(0) == []
    assert store.is_start_noted
    paths = [path for _file, path in store.expire(2)]
    assert [path for path in paths if path.startswith("commitlog")] == [
        f"commitlog/{first:020d}" for first in (0, SEGMENT_SIZE)
    ]
    assert any(path.startswith("index/") for path in paths)
    assert not store.is_start_noted
    store.checkpoint()
    assert store.is_start_noted
    assert progress(disk).log_start == 2 * SEGMENT_SIZE


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_a_mark_of_use_for_which_there_is_no_room_is_an_empty_file(error: int) -> None:
    disk = MemoryDisk()
    disk.fail_at, disk.error = 0, error
    store = opened(disk)
    assert disk.operations[0].path == ABORT_PATH
    assert ("sync", ABORT_PATH, 0, 0) in disk.operations
    assert disk.opened[ABORT_PATH] == 0
    store.close()
    assert disk.size_of(ABORT_PATH) == -1


def test_a_mark_of_use_that_cannot_be_written_ends_the_start() -> None:
    disk = MemoryDisk()
    disk.fail_at = 0
    with pytest.raises(OSError, match="Input/output"):
        opened(disk)


def test_folders_that_are_no_queues_are_left_alone() -> None:
    disk = MemoryDisk()
    disk.place_file(f"consumequeue/orders/notes/{0:020d}", b"?")
    store = opened(disk)
    assert store.queue("orders", 0) is None
    store.close()
    assert disk.files()[f"consumequeue/orders/notes/{0:020d}"] == b"?"


def test_units_of_expired_messages_are_removed_when_a_store_opens() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    send(store, *[b"b" * 300] * 20)
    store.expire(3)
    store.close()
    for first in range(0, 3 * SEGMENT_SIZE, SEGMENT_SIZE):
        disk.remove(f"commitlog/{first:020d}")
    again = opened(disk)
    first, end = again.bounds("orders", 0)
    queue = again.queue("orders", 0)
    assert queue is not None
    assert queue.unit(first).commit_log_offset >= again.log.start == 3 * SEGMENT_SIZE
    assert (first, end) == (15, 20)
    assert disk.names("consumequeue/orders/0") == [f"{3 * QUEUE_FILE_SIZE:020d}"]
    assert again.upkeep.unsynced == 0, "the start has written a checkpoint"
