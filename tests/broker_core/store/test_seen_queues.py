"""After a clean stop a start looks at each queue, and opens none; what differs is loaded whole."""

from collections import Counter
from collections.abc import Callable

import pytest
from tests.broker_core.store.store_life import (
    QUEUE_FILE_SIZE,
    QUEUES,
    Life,
    flush,
    message,
    new_store,
)

from reliable_mq.broker_core.store import message_store, recovery
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.consume_queue import pack_unit
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.progress import StoreProgress, load_progress
from reliable_mq.broker_core.store.seen_queues import SeenQueues, seen_queues
from reliable_mq.errors import StoreCorrupt
from reliable_mq.testing.memory_disk import MemoryDisk

NOW = 1_700_000_000_000
MANY = 300
FILE = "consumequeue/t7/0/" + "0" * 20


def closed(topics: int = MANY, messages: int = 2) -> MemoryDisk:
    """Return a store with some messages in each topic, after a clean stop."""
    disk = MemoryDisk()
    store = opened(disk)
    for _ in range(messages):
        for number in range(topics):
            store.append(message(f"t{number}", 0, b"body"), NOW)
        flush(store)
    store.close()
    return disk


def opened(disk: MemoryDisk) -> MessageStore:
    store = new_store(disk, segment_size=1 << 20)
    store.open()
    return store


def seen_in(disk: MemoryDisk) -> SeenQueues:
    store = new_store(disk, segment_size=1 << 20)
    note = load_progress(disk)
    assert note is not None
    return seen_queues(disk, store.log, note, QUEUE_FILE_SIZE, store.deletions)


def nothing_seen(_disk: Disk, _log: CommitLog, note: StoreProgress, *_: object) -> SeenQueues:
    return SeenQueues({}, note.queues)


def extents(store: MessageStore) -> dict[tuple[str, int], tuple[int, ...]]:
    return {
        key: (q.begin, q.first, q.end, q.last_log_offset, q.log_end)
        for key, q in sorted(store.queues.items())
    }


class ListedDisk(MemoryDisk):
    """A disk that notes which folders were listed."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__()
        self.__dict__ |= disk.__dict__
        self.listed: list[str] = []

    def names(self, folder: str) -> list[str]:
        self.listed.append(folder)
        return super().names(folder)


def test_a_start_looks_at_each_queue_once_and_opens_and_lists_none() -> None:
    disk = ListedDisk(closed())
    disk.looks = []
    store = opened(disk)
    of_queues = [each for each in disk.looks if each.path.startswith("consumequeue")]
    assert Counter(each.verb for each in of_queues) == {"look": MANY}
    assert [each for each in disk.listed if each.startswith("consumequeue")] == ["consumequeue"]
    assert len(store.queues) == MANY


def test_few_queues_are_searched_for_where_the_check_of_the_log_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = closed()
    note = load_progress(disk)
    assert note is not None
    target = note.queues["t0"][0].last_log_offset - 1  # before the last message of each queue
    monkeypatch.setattr(recovery, "VERIFIED_SIZE", note.log_end - target)
    disk.looks = []
    store = opened(disk)
    searched = {each.path for each in disk.looks if each.path.startswith("consumequeue/")}
    read = {e.path for e in disk.looks if e.verb == "read" and e.path in searched}
    assert len(read) == 64
    verified = [e.at for e in disk.looks if e.verb == "read" and e.path.startswith("commitlog")]
    assert target - 300 * 200 < min(at for at in verified if at) <= target
    assert len(store.queues) == MANY


def test_a_queue_that_was_seen_goes_on_at_its_next_message() -> None:
    disk = closed()
    store = opened(disk)
    assert store.append(message("t7", 0, b"next"), NOW).queue_offset == 2
    flush(store)
    queue = store.queue("t7", 0)
    assert queue is not None
    found = [store.read_record(queue.unit(n).commit_log_offset) for n in range(3)]
    assert [record.body for record in found if record] == [b"body", b"body", b"next"]
    store.close()
    assert extents(opened(disk))["t7", 0][1:3] == (0, 3)


def test_what_is_seen_is_what_the_files_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(12):
        life = Life(MemoryDisk(), seed)
        life.run(8)
        store = life.open()
        by_note = extents(store)
        store.close()
        with monkeypatch.context() as patched:
            patched.setattr(message_store, "seen_queues", nothing_seen)
            assert extents(life.open()) == by_note
        assert {key for key in by_note if by_note[key][2]} <= set(QUEUES)


def test_a_start_leaves_a_note_with_what_was_seen_and_what_has_changed() -> None:
    disk = closed()
    before = load_progress(disk)
    opened(disk).close()
    after = load_progress(disk)
    assert before is not None
    assert after is not None
    assert after.queues == before.queues
    disk.place_file(FILE, bytes(QUEUE_FILE_SIZE))  # it is built anew from the log
    opened(disk).close()
    again = load_progress(disk)
    assert again is not None
    assert again.queues == before.queues


def test_a_start_after_a_kill_sees_nothing() -> None:
    disk = closed()
    store = opened(disk)
    store.append(message("t7", 0, b"next"), NOW)
    flush(store)
    disk.looks = []
    store = opened(disk)
    assert not any(each.verb == "look" for each in disk.looks)
    assert extents(store)["t7", 0][1:3] == (0, 3)


def _other_last(units: bytearray) -> None:
    units[20:40] = pack_unit(5, 90, 0)


def _no_first(units: bytearray) -> None:
    units[0:20] = bytes(20)


def _one_more(units: bytearray) -> None:
    units[40:60] = pack_unit(1 << 30, 90, 0)


def _long_last(units: bytearray) -> None:
    units[28:32] = (1 << 20).to_bytes(4)


@pytest.mark.parametrize("change", [_other_last, _no_first, _one_more, _long_last])
def test_a_queue_that_is_not_as_the_note_says_is_not_believed(
    change: Callable[[bytearray], None],
) -> None:
    disk = closed()
    units = bytearray(disk.files()[FILE])
    change(units)
    disk.place_file(FILE, bytes(units))
    seen = seen_in(disk)
    assert (len(seen.found), list(seen.others)) == (MANY - 1, ["t7"])
    queue = opened(disk).queue("t7", 0)
    assert queue is not None
    assert (queue.first, queue.end) == (0, 2)
    assert [queue.unit(number).size > 0 for number in range(2)] == [True, True]


def test_a_queue_of_another_file_size_is_refused_as_before() -> None:
    disk = closed()
    disk.place_file(FILE, bytes(QUEUE_FILE_SIZE + 20))
    with pytest.raises(StoreCorrupt, match=f"{FILE}: 120 bytes instead of 100"):
        opened(disk)


@pytest.mark.parametrize(("messages", "is_seen"), [(4, True), (5, False), (6, False)])
def test_a_queue_with_a_full_file_or_several_is_loaded(messages: int, is_seen: bool) -> None:
    disk = closed(3, messages)
    assert len(seen_in(disk).found) == (3 if is_seen else 0)
    assert extents(opened(disk))["t2", 0][1:3] == (0, messages)


def test_a_topic_that_was_deleted_is_loaded() -> None:
    disk = closed(3)
    store = opened(disk)
    store.delete_topic("t1")
    disk.write_text("deleted", store.deletions.dump())
    store.close()
    again = new_store(disk, segment_size=1 << 20)
    again.deletions.load(disk.read_text("deleted"))
    again.open()
    assert extents(again)["t1", 0][:3] == (5, 5, 5)
    assert extents(again)["t0", 0][:3] == (0, 0, 2)


def test_a_folder_that_the_note_does_not_know_is_loaded() -> None:
    disk = closed(3)
    disk.place_file("consumequeue/copied/0/" + "0" * 20, bytes(QUEUE_FILE_SIZE))
    assert ("copied", 0) in opened(disk).queues
