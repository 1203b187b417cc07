"""What a broker says about popped messages and their records that another broker has left."""

import pytest
from tests.broker_core.pop_world import INVISIBLE_MS, RETRY, PopWorld

from reliable_mq.broker_core.groups import GroupConfig
from reliable_mq.broker_core.requests.pop_records import append_checkpoint
from reliable_mq.limits import TOPIC_LENGTH_MAX
from reliable_mq.wire.pop_records import CHECKPOINT, CheckpointKey, PopCheckpoint


def test_a_message_whose_retry_topic_has_no_name_is_dropped_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Apache's broker takes groups of 255 characters; no record holds the topic of its retries."""
    world = PopWorld()
    topic, group = "t" * TOPIC_LENGTH_MAX, "g" * 255
    world.create_topic(topic)
    world.state.groups.set_group(GroupConfig(group_name=group), world.now_ms)
    world.send(b"lost", topic=topic, KEYS="order-1")
    key = CheckpointKey(topic, group, 0, 0, world.now_ms, "b")
    append_checkpoint(world.state, PopCheckpoint(key, INVISIBLE_MS, (0,)), 0, world.now_ms)
    world.send(b"mine")
    assert world.bodies() == [b"mine"]

    world.pass_time(INVISIBLE_MS + 100)

    (line,) = caplog.messages
    assert line.startswith("popped message ")
    assert " (key order-1) at log offset " in line
    assert "does not come back: a topic of 390 bytes" in line
    assert [record.body for record in world.records(RETRY)] == [b"mine"]


def test_a_record_that_is_no_checkpoint_is_named_and_keeps_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = PopWorld()
    world.forge("rmq_sys_REVIVE_LOG_DefaultCluster", TAGS=CHECKPOINT)
    place = world.state.store.queues["rmq_sys_REVIVE_LOG_DefaultCluster", 0].unit(0)
    world.send(b"mine")
    world.pop()
    world.restart()

    (line,) = caplog.messages
    offset = place.commit_log_offset
    assert line.startswith(f"the record at log offset {offset} says nothing about popped messages")
    world.pass_time(INVISIBLE_MS + 100)
    assert world.bodies() == [b"mine"]
