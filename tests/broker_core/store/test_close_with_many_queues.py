"""A stop is bounded: units of very many new queues are left for the next start."""

import logging

import pytest
from tests.broker_core.broker_world import BrokerWorld

from reliable_mq.broker_core.store import message_store
from reliable_mq.broker_core.store.message_store import ABORT_PATH
from reliable_mq.testing.memory_disk import MemoryDisk


@pytest.mark.parametrize("count", [3, 30])
def test_a_stop_with_very_many_unwritten_queues_leaves_them_and_the_next_start_has_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq")
    monkeypatch.setattr(message_store, "_WRITTEN_AT_CLOSE", 10)
    world = BrokerWorld(MemoryDisk())
    for number in range(count):
        world.create_topic(f"t-{number}", 1)
        world.send(b"%d" % number, topic=f"t-{number}")
    assert world.state.store.upkeep.unwritten == count
    made = len([path for path in world.disk.paths() if path.startswith("consumequeue/")])

    world.stop()

    events = [getattr(each, "event", "") for each in caplog.records]
    is_left = count > 10
    assert events.count("queues_left_unwritten") == is_left
    assert (world.disk.size_of(ABORT_PATH) >= 0 or ABORT_PATH in world.disk.paths()) == is_left
    left = [path for path in world.disk.paths() if path.startswith("consumequeue/")]
    assert len(left) == (made if is_left else count)
    again = BrokerWorld(world.disk)
    for number in range(count):
        assert [each.body for each in again.records(f"t-{number}")] == [b"%d" % number]
