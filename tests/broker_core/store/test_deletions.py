"""What was deleted of which queue: noted, settled at the log's end, forgotten, kept in a file."""

import pytest

from reliable_mq.broker_core.store.deletions import FOLDER, Deletions, QueueBegin
from reliable_mq.broker_core.store.disk import path_inside
from reliable_mq.broker_core.store.progress import QueueExtent, StoreProgress
from reliable_mq.errors import StoreError
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE
from reliable_mq.testing.memory_disk import MemoryDisk

UNIT = CONSUME_QUEUE_UNIT_SIZE
FILE_SIZE = 4 * UNIT


def unit(log_offset: int) -> bytes:
    return log_offset.to_bytes(8) + (100).to_bytes(4) + bytes(8)


def with_queue(disk: MemoryDisk, topic: str, queue_id: int, name: int, *log_offsets: int) -> None:
    path = f"{FOLDER}/{topic}/{queue_id}/{name * UNIT:020d}"
    disk.place_file(path, b"".join(map(unit, log_offsets)).ljust(FILE_SIZE, b"\0"))


def progress(**queues: QueueExtent) -> StoreProgress:
    return StoreProgress(queues={topic: {0: extent} for topic, extent in queues.items()})


def test_records_before_the_end_of_a_deletion_do_not_count() -> None:
    deletions = Deletions()
    deletions.note_deleted("t", 1, 500, 7)
    assert deletions.is_deleted("t", 1, 499)
    assert not deletions.is_deleted("t", 1, 500)
    assert not deletions.is_deleted("t", 2, 0)
    assert not deletions.is_deleted("u", 1, 0)
    deletions.note_deleted("t", 2, 9, 0)
    assert deletions.queues() == [("t", 1)]


def test_a_later_deletion_takes_no_earlier_one_back() -> None:
    deletions = Deletions()
    deletions.note_deleted("t", 1, 500, 7)
    deletions.note_deleted("t", 1, 300, 9)
    assert deletions.is_deleted("t", 1, 499)
    again = Deletions()
    again.load(deletions.dump())
    assert again.dump() == deletions.dump() == '{"topics":{"t":{"1":{"logEnd":500,"begin":9}}}}'


def test_only_what_another_broker_deleted_is_told(caplog: pytest.LogCaptureFixture) -> None:
    deletions = Deletions()
    deletions.note_deleted("ours", 1, 500, 7)
    deletions.note_deleted("later", 1, 2000, 7)
    deletions.settle(1000)
    assert caplog.messages == []
    deletions.note_deleted("theirs", 3, 2**63 - 1, 0)
    deletions.settle(1000)
    assert caplog.messages == [
        "another broker deleted queue 3 of topic theirs: its messages are not shown"
    ]


def test_the_end_of_the_log_ends_every_deletion_and_news_are_told_once() -> None:
    deletions = Deletions()
    assert not deletions.settle(1000)
    deletions.note_deleted("t", 1, 2**63 - 1, 0)
    deletions.note_deleted("t", 2, 1000, 0)
    assert deletions.settle(1000)
    assert not deletions.settle(1000)
    assert deletions.is_deleted("t", 1, 999)
    assert not deletions.is_deleted("t", 1, 1000)
    assert deletions.settle(999)
    assert not deletions.is_deleted("t", 2, 999)


def test_a_topic_is_forgotten_when_nobody_uses_it_and_its_records_are_gone() -> None:
    deletions = Deletions()
    for topic, log_end in (("used", 100), ("old", 100), ("kept", 101)):
        deletions.note_deleted(topic, 0, log_end, 0)
    assert deletions.is_kept("kept", 100)
    assert not deletions.is_kept("old", 100)
    assert deletions.forget(100, lambda topic: topic == "used")
    assert not deletions.forget(100, lambda topic: topic == "used")
    told = [deletions.is_deleted(topic, 0, 5) for topic in ("used", "old", "kept")]
    assert told == [True, False, True]


def test_a_queue_without_a_folder_was_deleted_by_another_broker() -> None:
    disk = MemoryDisk()
    with_queue(disk, "here", 0, 0, 10)
    deletions = Deletions()
    known = progress(here=QueueExtent(0, 1, 10), gone=QueueExtent(0, 5, 400))
    deletions.note_others(disk, known, was_killed=True)
    assert not deletions.is_deleted("here", 0, 10)
    assert deletions.is_deleted("gone", 0, 400)
    assert deletions.settle(1000)
    assert deletions.is_deleted("gone", 0, 999)
    assert not deletions.is_deleted("gone", 0, 1000)


@pytest.mark.parametrize("was_killed", [False, True])
def test_after_a_clean_stop_a_queue_that_nobody_knows_has_no_messages(was_killed: bool) -> None:
    disk = MemoryDisk()
    with_queue(disk, "here", 0, 0, 10)
    deletions = Deletions()
    deletions.note_others(disk, None, was_killed=was_killed)
    assert deletions.is_deleted("never", 0, 10) is not was_killed
    assert not deletions.is_deleted("here", 0, 10)
    assert deletions.settle(1000) is not was_killed
    assert not deletions.is_deleted("other", 0, 10), "the log has ended: what comes is new"


@pytest.mark.parametrize(
    ("begin", "last", "is_deleted"),
    [(401, 400, True), (400, 400, False), (10, 400, False), (401, -1, False)],
)
def test_a_queue_that_begins_behind_what_it_held_was_deleted_and_made_again(
    begin: int, last: int, is_deleted: bool
) -> None:
    disk = MemoryDisk()
    with_queue(disk, "t", 0, 0, begin, begin + 100)
    deletions = Deletions()
    deletions.note_others(disk, progress(t=QueueExtent(0, 5, last)), was_killed=True)
    assert deletions.is_deleted("t", 0, 400) is is_deleted
    assert not deletions.is_deleted("t", 0, begin)
    assert deletions.queues() == [], "it begins at 0"


@pytest.mark.parametrize("size", [0, UNIT - 1])
def test_a_file_without_a_whole_unit_says_nothing_about_its_queue(size: int) -> None:
    disk = MemoryDisk()
    disk.place_file(f"{FOLDER}/t/0/{0:020d}", b"\1" * size)
    deletions = Deletions()
    deletions.note_others(disk, progress(t=QueueExtent(0, 5, 400)), was_killed=True)
    assert not deletions.is_deleted("t", 0, 0)
    assert +disk.opened == {}


def test_files_of_a_queue_are_closed_when_their_begin_is_known() -> None:
    disk = MemoryDisk()
    with_queue(disk, "t", 0, 0, 401, 500)
    deletions = Deletions()
    deletions.note_others(disk, progress(t=QueueExtent(0, 5, 400)), was_killed=True)
    assert deletions.is_deleted("t", 0, 400)
    assert +disk.opened == {}


def test_a_queue_whose_first_file_is_blank_begins_in_a_later_one() -> None:
    disk = MemoryDisk()
    blank = bytes(8) + (0x7FFFFFFF).to_bytes(4) + bytes(8)
    for first_units, is_deleted in ((blank * 4, False), (blank * 3 + unit(401), True)):
        disk.place_file(f"{FOLDER}/t/0/{0:020d}", first_units)
        deletions = Deletions()
        deletions.note_others(disk, progress(t=QueueExtent(0, 5, 400)), was_killed=True)
        assert deletions.is_deleted("t", 0, 400) is is_deleted


def test_without_any_folder_all_queues_are_built_from_the_log_again() -> None:
    deletions = Deletions()
    deletions.note_others(MemoryDisk(), progress(t=QueueExtent(0, 5, 4)), was_killed=False)
    assert not deletions.is_deleted("t", 0, 0)
    assert not deletions.settle(10)


def test_a_deletion_that_is_known_is_not_noted_anew() -> None:
    disk = MemoryDisk()
    with_queue(disk, "here", 0, 0, 10)
    deletions = Deletions()
    deletions.load('{"topics":{"gone":{"0":{"logEnd":500,"begin":8}}}}')
    deletions.note_others(disk, progress(gone=QueueExtent(0, 5, 400)), was_killed=True)
    assert not deletions.settle(1000)
    assert not deletions.is_deleted("gone", 0, 500)
    assert deletions.queues() == [("gone", 0)]


def test_a_deleted_queue_goes_on_in_a_file_of_its_own() -> None:
    disk = MemoryDisk()
    with_queue(disk, "t", 0, 0, 10, 20)
    with_queue(disk, "t", 0, 4, 30)
    with_queue(disk, "t", 0, 8, 600)
    deletions = Deletions()
    assert deletions.origin(disk, "t", 0, FILE_SIZE) == QueueBegin()
    deletions.note_deleted("t", 0, 500, 5)
    stale = frozenset(f"{at * UNIT:020d}" for at in (0, 4))
    assert deletions.origin(disk, "t", 0, FILE_SIZE) == QueueBegin(8, stale)
    assert deletions.origin(disk, "t", 1, FILE_SIZE) == QueueBegin()


def test_a_topic_that_apaches_broker_made_again_begins_at_nought() -> None:
    disk = MemoryDisk()
    with_queue(disk, "t", 0, 0, 500, 520)
    deletions = Deletions()
    deletions.note_deleted("t", 0, 500, 4)
    assert deletions.origin(disk, "t", 0, FILE_SIZE) == QueueBegin()
    assert deletions.queues() == []
    assert deletions.is_deleted("t", 0, 499)


@pytest.mark.parametrize("path", ["/a", "a\0b", "..", "a/../b", "../a", "a/.."])
def test_no_name_of_a_topic_leads_out_of_a_store(path: str) -> None:
    with pytest.raises(StoreError, match="not a path inside"):
        path_inside(path)


@pytest.mark.parametrize("path", ["a", "a/b", "a..b/c", "...", ".a", "a//b", ""])
def test_other_names_are_taken_as_they_are(path: str) -> None:
    assert path_inside(path) == path
