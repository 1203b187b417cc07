"""Properties: Apache's names and defaults, one clear line for what is wrong."""

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, there

from reliable_mq.broker_core.config import BrokerConfig, broker_config
from reliable_mq.errors import ConfigurationError
from reliable_mq.wire.java_properties import parse_properties


def test_without_properties_the_defaults_hold() -> None:
    config, warnings = broker_config({})

    assert config == BrokerConfig()
    assert config.flush_disk_type == "SYNC_FLUSH", "the one default that is not Apache's"
    assert warnings == []


def test_a_property_that_is_not_supported_is_named_with_the_nearest_that_is() -> None:
    _, warnings = broker_config({"flushDiskTyp": "x", "sendMessageThreadPoolNums": "4"})

    without_effect = "this property is not supported and has no effect"
    assert warnings == [
        f"flushDiskTyp: {without_effect}; did you mean flushDiskType?",
        f"sendMessageThreadPoolNums: {without_effect}",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listenPort", "x"),
        ("listenPort", "70000"),
        ("brokerId", "1"),
        ("flushDiskType", "SOMETIMES"),
        ("traceOn", "perhaps"),
        ("messageDelayLevel", "1s 5x"),
        ("messageDelayLevel", ""),
        ("maxMessageSize", "0"),
        ("maxMessageSize", "4194305"),
        ("mappedFileSizeCommitLog", "1000"),
        ("mappedFileSizeConsumeQueue", "30"),
        ("flushConsumerOffsetInterval", "0"),
        ("registerNameServerPeriod", "-1"),
        ("defaultTopicQueueNums", "0"),
        ("maxTransferCountOnMessageInMemory", "0"),
        ("brokerIP1", "not an address"),
        ("brokerName", ""),
        ("brokerName", "a b"),
        ("brokerClusterName", "ä"),
        ("regionId", "a\x01b"),
    ],
)
def test_a_bad_value_is_an_error_that_names_it(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        broker_config({name: value})

    assert str(caught.value).startswith(name)
    assert "\n" not in str(caught.value)


def test_a_broker_conf_is_read_as_java_reads_properties() -> None:
    text = (
        "# a comment\n! another\n\n brokerName = a \r\nlistenPort:1\nregionId x y\n"
        "messageDelayLevel=1s \\\n    5s\npath=c\\:\\\\d\nempty=\nonly\nurl=a=b:c"
    )

    assert parse_properties(text) == {
        "brokerName": "a",
        "listenPort": "1",
        "regionId": "x y",
        "messageDelayLevel": "1s 5s",
        "path": "c:\\d",
        "empty": "",
        "only": "",
        "url": "a=b:c",
    }


def test_properties_of_a_message_follow_the_settings() -> None:
    world = BrokerWorld(regionId="north", traceOn="false", brokerClusterName="shop")
    world.create_topic()

    answer = world.send(UNIQ_KEY="A" * 32)

    assert (answer.ext_fields["MSG_REGION"], answer.ext_fields["TRACE_ON"]) == ("north", "false")
    stored = world.records(TOPIC)[0].property_map()
    assert stored.items() >= {
        ("MSG_REGION", "north"),
        ("TRACE_ON", "false"),
        ("CLUSTER", "shop"),
    }


def test_topics_are_made_only_when_that_is_allowed() -> None:
    closed = BrokerWorld(autoCreateTopicEnable="false")
    assert closed.state.topics.get("TBW102") is None

    few = BrokerWorld(defaultTopicQueueNums="2")
    few.send(topic="fresh")
    assert there(few.state.topics.get("fresh")).write_queue_nums == 2


def test_a_lock_lives_as_long_as_it_is_set_to() -> None:
    properties = {"rocketmq.broker.rebalance.lockMaxLiveTime": "5"}
    world = BrokerWorld(None, **properties)

    assert world.state.locks._lifetime_ms == 5


def test_a_name_with_other_characters_is_told_which_it_may_have() -> None:
    with pytest.raises(ConfigurationError, match=r"^brokerName=a b: letters a-z A-Z, digits and"):
        broker_config({"brokerName": "a b"})
