"""Many consume queues at once: written and synced a few at a time, and none forgotten."""

import errno
from typing import Any

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, there, waiting_pull_header

from reliable_mq.broker_core.store import queue_upkeep
from reliable_mq.broker_core.store.progress import PATH as NOTE_PATH
from reliable_mq.broker_core.store.progress import QueueExtent
from reliable_mq.testing.memory_disk import Operation
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
