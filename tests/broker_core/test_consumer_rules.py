"""What tools lay down for groups is kept over a restart, and the log is read as they say."""

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC, BrokerWorld

from reliable_mq.testing.memory_disk import MemoryFile
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask


@pytest.fixture
def world(world: BrokerWorld) -> BrokerWorld:
    world.create_topic()
    return world


def forbidden(world: BrokerWorld, topic: str, **changes: object) -> bool:
    header = {"group": GROUP, "topic": topic, **changes}
    answer = world.ask(Ask.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
    return not fastjson.loads(answer.body)["readable"]


def test_a_topic_stays_forbidden_to_a_group_over_a_restart(world: BrokerWorld) -> None:
    assert forbidden(world, TOPIC, readable="false")
    assert forbidden(world, "others", readable="false")
    assert not forbidden(world, TOPIC, readable="true")
    world.stop()
    world.start()
    assert not forbidden(world, TOPIC)
    assert forbidden(world, "others")


def test_a_mode_is_kept_where_apaches_broker_looks_for_it(world: BrokerWorld) -> None:
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 3}
    assert world.ask(Ask.SET_MESSAGE_REQUEST_MODE, {}, fastjson.dumps(mode)).code == 0
    text = world.disk.read_text("config/messageRequestMode.json")
    kept = {"messageRequestModeMap": {TOPIC: {GROUP: mode}}}
    assert fastjson.loads(text) == kept
    world.stop()
    world.start()
    assert fastjson.loads(world.ask(Ask.GET_ALL_MESSAGE_REQUEST_MODE).body) == kept


def test_segments_are_read_ahead_or_not_as_tools_say_the_new_ones_too(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(
        MemoryFile, "read_ahead", lambda _file, *, is_wanted: told.append(is_wanted)
    )
    world.send()
    world.ask(Ask.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "1"})
    world.ask(Ask.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "1"})
    assert told == [False]
    assert b"dataReadAheadEnable=false" in world.ask(Ask.GET_BROKER_CONFIG).body
    for _ in range(5):
        world.send(b"x" * 60_000)
    assert told == [False, False]
    world.ask(Ask.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "0"})
    assert told == [False, False, True, True]
