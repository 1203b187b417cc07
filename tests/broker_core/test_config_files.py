"""The files under config/: Apache's form, Apache's own files, and files that are broken."""

import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC, BrokerWorld, there

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.offsets import OffsetTable
from reliable_mq.errors import StoreCorrupt
from reliable_mq.testing.memory_disk import MemoryDisk

# Copied from a running Apache RocketMQ 5.4.0, shortened.
APACHES = {
    "config/topics.json": """{
	"dataVersion":{
		"counter":4,
		"stateVersion":0,
		"timestamp":1795218734471
	},
	"topicConfigTable":{
		"orders":{
			"attributes":{"message.type":"FIFO"},
			"order":true,
			"perm":6,
			"readQueueNums":3,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"orders",
			"topicSysFlag":0,
			"writeQueueNums":2
		},
		"old":{"order":false,"perm":4,"readQueueNums":1,"topicFilterType":"MULTI_TAG",
			"topicName":"old","topicSysFlag":0,"writeQueueNums":1}
	}
}""",
    "config/subscriptionGroup.json": """{
	"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1795218734471},
	"forbiddenTable":{
		"payments":{
			"old":4
		}
	},
	"subscriptionGroupTable":{
		"payments":{
			"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,
			"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,
			"groupName":"payments","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,
			"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":3,"retryQueueNums":1,
			"subscriptionDataSet":null,"whichBrokerWhenConsumeSlowly":1
		}
	}
}""",
    "config/consumerOffset.json": """{
	"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1795218734471},
	"groupTopicMap":{"payments":["orders"]},
	"offsetTable":{
		"orders@payments":{0:62816,1:62496
		},
		"%RETRY%payments@payments":{0:0}
	}
}""",
    "config/delayOffset.json": """{
	"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1795218734471},
	"offsetTable":{3:0
	}
}""",
}


def test_the_files_of_an_apache_broker_are_read() -> None:
    disk = MemoryDisk()
    for path, text in APACHES.items():
        disk.write_text(path, text)

    state = BrokerWorld(disk).state

    topic = there(state.topics.get(TOPIC))
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.order) == (3, 2, True)
    assert topic.attributes == {"message.type": "FIFO"}
    assert there(state.topics.get("old")).perm == 4
    assert state.topics.version.counter > 4
    assert there(state.groups.get(GROUP)).retry_max_times == 3
    assert state.groups.is_read_forbidden(GROUP, "old")
    offsets = OffsetTable()
    offsets.load(APACHES["config/consumerOffset.json"])
    assert offsets.get(GROUP, TOPIC, 0) == 62816
    assert offsets.topics_of(GROUP) == [f"%RETRY%{GROUP}", TOPIC]


def test_what_is_written_has_apaches_form_and_is_read_back() -> None:
    world = BrokerWorld()
    world.create_topic(queues=2)
    world.subscribe(TOPIC)
    for _ in range(5):
        world.send(queue_id=1)
    world.state.offsets.commit(GROUP, TOPIC, 1, 5)
    world.stop()

    text = world.disk.read_text("config/consumerOffset.json")
    assert f'\n\t\t"{TOPIC}@{GROUP}":{{\n\t\t\t1:5\n\t\t}}' in text
    topic = world.file("config/topics.json")["topicConfigTable"][TOPIC]
    assert topic == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 2,
        "topicFilterType": "SINGLE_TAG",
        "topicName": TOPIC,
        "topicSysFlag": 0,
        "writeQueueNums": 2,
    }
    again = BrokerWorld(world.disk).state
    assert again.topics.get(TOPIC) == world.state.topics.get(TOPIC)
    assert again.groups.get(GROUP) == world.state.groups.get(GROUP)
    assert again.offsets.get(GROUP, TOPIC, 1) == 5


TABLES = ("topicConfigTable", "subscriptionGroupTable", "offsetTable", "offsetTable")
BROKEN = [(path, text) for path in APACHES for text in ("{", "[]", '"text"', "\0\0\0\0")]
BROKEN += [(path, f'{{"{table}":7}}') for path, table in zip(APACHES, TABLES, strict=True)]


@pytest.mark.parametrize(("path", "text"), BROKEN)
def test_a_broken_file_is_named_and_left_as_it_is(path: str, text: str) -> None:
    disk = MemoryDisk()
    disk.write_text(path, text)
    before = disk.files()

    with pytest.raises(StoreCorrupt) as caught:
        BrokerCore(BrokerConfig(), disk).open(START_MS)

    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert disk.files() == before


def test_an_empty_file_says_nothing() -> None:
    disk = MemoryDisk()
    for path in APACHES:
        disk.write_text(path, "")

    BrokerWorld(disk).send(b"it serves")


@pytest.mark.parametrize("text", ["", "{", "\0\0\0\0", None])
@pytest.mark.parametrize("path", APACHES)
def test_an_empty_broken_or_missing_file_is_taken_from_apaches_copy_with_a_warning(
    path: str, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    for other, good in APACHES.items():
        disk.write_text(f"{other}.bak" if other == path else other, good)
    if text is not None:
        disk.write_text(path, text)

    state = BrokerWorld(disk).state

    assert there(state.topics.get(TOPIC)).read_queue_nums == 3
    assert there(state.groups.get(GROUP)).retry_max_times == 3
    assert state.offsets.groups_of(TOPIC) == [GROUP]
    (warning,) = caplog.messages
    assert f"{path} is" in warning
    assert warning.endswith(f"{path}.bak")


def test_a_broken_file_whose_copy_is_broken_too_is_refused() -> None:
    disk = MemoryDisk()
    disk.write_text("config/topics.json", "{")
    disk.write_text("config/topics.json.bak", "")

    with pytest.raises(StoreCorrupt, match="restore it from a copy"):
        BrokerCore(BrokerConfig(), disk).open(START_MS)


def test_tables_that_are_missing_beside_a_log_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = BrokerWorld()
    world.send(b"kept")
    world.stop()
    assert not caplog.messages
    for name in world.disk.names("config"):
        world.disk.remove(f"config/{name}")

    BrokerWorld(world.disk)

    assert any("config/topics.json is missing beside a log" in text for text in caplog.messages)
