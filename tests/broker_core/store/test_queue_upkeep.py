"""Many consume queues at once: written and synced a few at a time, and none forgotten."""

import errno
from typing import Any

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, there, waiting_pull_header
from tests.broker_core.store.store_life import flush, message, new_store

from reliable_mq.broker_core.store import queue_upkeep
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.progress import PATH as NOTE_PATH
from reliable_mq.broker_core.store.progress import Extents, QueueExtent
from reliable_mq.testing.memory_disk import MemoryDisk, Operation
from reliable_mq.wire.codes import RequestCode

QUEUES = 100
DUE = 512  # so many units of a queue are written at once


def test_queues_are_written_and_synced_in_slices_and_a_checkpoint_does_the_rest(
    world: BrokerWorld,
) -> None:
    store, upkeep = world.state.store, world.state.store.upkeep
    store.begin_checkpoint()()
    for number in range(QUEUES):
        world.send(topic=f"topic-{number}")
    assert (upkeep.unwritten, upkeep.unsynced) == (QUEUES, 0)

    upkeep.flush_some(30)
    assert (upkeep.unwritten, upkeep.unsynced) == (QUEUES - 30, 30)
    assert len(upkeep.take_unsynced(20)) == 20
    assert upkeep.unsynced == 10
    operations = len(world.disk.operations)
    store.begin_checkpoint()()

    assert (upkeep.unwritten, upkeep.unsynced) == (0, 0)
    synced = [one.path for one in world.disk.operations[operations:] if one.verb == "sync"]
    assert sum(path.startswith("consumequeue/") for path in synced) == QUEUES - 20


def test_a_checkpoint_asks_no_queue_that_did_not_change_and_what_it_notes_stays_as_it_was(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.state.store
    for number in range(QUEUES):
        world.send(topic=f"topic-{number}")
    store.begin_checkpoint()()
    asked: list[QueueExtent] = []

    def counted(*fields: int) -> QueueExtent:
        asked.append(QueueExtent(*fields))
        return asked[-1]

    monkeypatch.setattr(queue_upkeep, "QueueExtent", counted)
    world.send(topic="topic-7")
    earlier = store.begin_checkpoint()
    world.send(topic="topic-7")
    world.send(topic="topic-8")
    later = store.begin_checkpoint()

    assert len(asked) == 3
    for work, ends in ((earlier, (2, 1)), (later, (3, 2))):
        work()
        queues = world.file(NOTE_PATH)["queues"]
        assert (queues["topic-7"]["0"][1], queues["topic-8"]["0"][1]) == ends
        assert len(queues) == QUEUES


def test_a_queue_file_that_fails_keeps_no_answer_and_no_pull_back_and_is_told(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    operate = world.disk.operate

    def fail_for_queues(operation: Operation, *content: Any) -> None:
        if operation.path.startswith("consumequeue/") and operation.verb == "write":
            raise OSError(errno.EIO, "Input/output error", operation.path)
        operate(operation, *content)

    monkeypatch.setattr(world.disk, "operate", fail_for_queues)
    for _ in range(DUE - 1):
        world.send()
    assert world.begin(RequestCode.PULL_MESSAGE, waiting_pull_header(DUE - 1), of=2) is None
    with pytest.raises(OSError, match="Input/output"):
        world.send()

    state = world.state
    assert state.answers.waiting == 0
    assert sorted(to for to, _frame in state.answers.take_ready()) == [1, 2]
    assert there(state.store.queue(TOPIC, 0)).end == DUE
    state.store.invariants()


class Kept:
    """A store with some queues of one topic each, and no checkpoint of them."""

    def __init__(self, count: int) -> None:
        self.disk = MemoryDisk()
        self.store = new_store(self.disk)
        self.store.open()
        self.upkeep = self.store.upkeep
        for number in range(count):
            self.send(number)

    def send(self, number: int, count: int = 1) -> None:
        for _ in range(count):
            self.store.append(message(f"t{number}", 0, b"b" * 100), 1)
        flush(self.store)

    def queue(self, number: int) -> ConsumeQueue:
        return there(self.store.queue(f"t{number}", 0))

    def extents(self) -> dict[str, tuple[int, int]]:
        return {
            topic: (queues[0].first, queues[0].end)
            for topic, queues in self.upkeep.extents.taken().items()
        }


def test_growth_is_told_once_and_written_oldest_first() -> None:
    kept = Kept(3)
    upkeep = kept.upkeep
    assert upkeep.take_grown() == {kept.queue(number) for number in range(3)}
    assert upkeep.take_grown() == set()
    assert (upkeep.due, kept.extents()) == ([], {})
    upkeep.flush_some(2)
    assert [kept.queue(number).is_waiting for number in range(3)] == [False, False, True]
    assert kept.extents() == {"t0": (0, 1), "t1": (0, 1)}
    assert len(upkeep.take_unsynced(1)) == 1
    assert upkeep.unsynced == 1
    kept.send(3, DUE)
    assert upkeep.due == [kept.queue(3)]
    upkeep.flush_due()
    assert (upkeep.due, kept.queue(3).is_waiting, kept.extents()["t3"]) == ([], False, (0, DUE))
    upkeep.flush()
    assert upkeep.unwritten == 0
    assert not kept.queue(2).is_waiting


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_units_without_room_wait_for_the_next_time_and_a_broken_disk_is_an_error(
    error: int,
) -> None:
    kept = Kept(1)
    kept.disk.fail_at, kept.disk.error = len(kept.disk.operations), error
    if error == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            kept.upkeep.flush()
        return
    kept.upkeep.flush()
    assert (kept.upkeep.unwritten, kept.extents()) == (1, {})
    kept.upkeep.flush()
    assert (kept.upkeep.unwritten, kept.extents()) == (0, {"t0": (0, 1)})


def test_queues_that_a_start_found_are_noted_and_synced_unless_they_are_empty() -> None:
    kept = Kept(2)
    kept.store.close()
    kept.disk.remove("config/storeProgress.json")
    again = new_store(kept.disk)
    again.open()
    noted = {topic: queues[0].end for topic, queues in again.upkeep.extents.taken().items()}
    assert noted == {"t0": 1, "t1": 1}


def test_a_deleted_queue_waits_for_nothing_and_its_number_is_noted() -> None:
    kept = Kept(2)
    kept.upkeep.flush_some(1)
    kept.store.delete_topic("t0")
    kept.store.delete_topic("t1")
    assert (kept.upkeep.unwritten, kept.upkeep.unsynced) == (0, 0)
    assert kept.extents() == {"t0": (5, 5), "t1": (5, 5)}
    gone = [path for _file, path in kept.upkeep.take_restarted()]
    assert gone == [f"consumequeue/t0/0/{0:020d}"]
    assert kept.upkeep.take_restarted() == []


def test_a_queue_is_written_when_it_has_the_file_that_was_made_for_it() -> None:
    kept = Kept(3)
    upkeep = kept.upkeep
    new = there(upkeep.begin_making(2))
    assert upkeep.begin_making(0) is None
    upkeep.flush()
    assert list(upkeep.gathering) == [kept.queue(0), kept.queue(1)], "their files are being made"
    new.make()
    new.make()  # again, as for want of descriptors: what was made stays
    upkeep.end_making(new)
    made = [one.path for one in kept.disk.operations if one.verb == "create"]
    upkeep.flush()
    assert upkeep.unwritten == 0
    assert made == [one.path for one in kept.disk.operations if one.verb == "create"]
    assert upkeep.begin_making(3) is None
    kept.send(0)
    assert upkeep.begin_making(3) is None, "the file has room"


def test_a_file_that_was_made_for_a_queue_which_began_anew_goes() -> None:
    kept = Kept(2)
    new = there(kept.upkeep.begin_making(2))
    new.make()
    kept.store.delete_topic("t1")
    kept.upkeep.end_making(new)
    assert [path for _file, path in kept.upkeep.take_restarted()] == [f"consumequeue/t1/0/{0:020d}"]
    kept.upkeep.flush()
    assert kept.extents() == {"t0": (0, 1), "t1": (5, 5)}


def test_files_for_which_there_is_no_room_are_made_later() -> None:
    kept = Kept(2)
    new = there(kept.upkeep.begin_making(2))
    kept.disk.fail_at, kept.disk.error = len(kept.disk.operations), errno.ENOSPC
    new.make()
    assert new.made == {}
    kept.upkeep.end_making(new)
    kept.upkeep.flush()
    assert (kept.upkeep.unwritten, kept.extents()) == (0, {"t0": (0, 1), "t1": (0, 1)})


def test_queues_are_trimmed_some_at_a_time_and_their_new_begin_is_noted() -> None:
    kept = Kept(3)
    for number in range(3):
        kept.send(number, 40)
    kept.upkeep.flush()
    kept.store.expire(2)
    start = kept.store.log.start
    assert kept.upkeep.trim_some(start, 0) == []
    gone = [kept.upkeep.trim_some(start, count) for count in (1, 1, 5, 5)]
    assert gone[3] == []
    firsts = [kept.queue(number).first for number in range(3)]
    assert min(firsts[:2]) > 0
    assert kept.extents() == {f"t{number}": (firsts[number], 41) for number in range(3)}
    for number in range(3):
        assert kept.queue(number).unit(firsts[number]).commit_log_offset >= start


def test_queues_of_unused_topics_go_when_the_log_has_none_of_their_messages() -> None:
    kept = Kept(3)
    kept.upkeep.flush()
    end = kept.queue(1).log_end
    assert kept.upkeep.drop_unused(end - 1, lambda topic: topic != "t1") == []
    gone = kept.upkeep.drop_unused(end, lambda topic: topic == "t0")
    assert [path for _file, path in gone] == [f"consumequeue/t1/0/{0:020d}"]
    for file, path in gone:
        file.close()
        kept.disk.remove(path)
    assert kept.store.queue("t1", 0) is None
    assert kept.extents() == {"t0": (0, 1), "t2": (0, 1)}
    assert (kept.upkeep.unsynced, kept.upkeep.unwritten) == (2, 0)
    kept.send(1)
    assert kept.store.bounds("t1", 0) == (0, 1), "a topic of that name begins anew"


def test_extents_that_were_taken_do_not_change() -> None:
    extents = Extents()
    extents.set_extent("a", 0, QueueExtent(0, 1, 5))
    extents.set_extent("a", 1, QueueExtent(0, 2, 6))
    before = extents.taken()
    extents.set_extent("a", 0, QueueExtent(0, 9, 7))
    extents.set_extent("a", 2, QueueExtent(0, 1, 8))
    extents.drop("a", 1)
    assert before == {"a": {0: QueueExtent(0, 1, 5), 1: QueueExtent(0, 2, 6)}}
    assert extents.taken() == {"a": {0: QueueExtent(0, 9, 7), 2: QueueExtent(0, 1, 8)}}
    for number in (0, 2):
        extents.drop("a", number)
    assert extents.taken() == {}
    extents.set_extent("a", 0, QueueExtent(0, 1, 5))
    assert extents.taken() == {"a": {0: QueueExtent(0, 1, 5)}}
