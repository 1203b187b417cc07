"""Properties: Apache's names and defaults, one clear line for what is wrong."""

import difflib
import typing
from unittest import mock

import msgspec
import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, there

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.config_reading import _MISSPELT, _OF_APACHE, broker_config
from reliable_mq.errors import ConfigurationError
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.java_properties import parse_properties


def test_without_properties_the_defaults_hold() -> None:
    config, warnings = broker_config({})

    assert config == BrokerConfig()
    assert config.flush_disk_type == "SYNC_FLUSH", "the one default that is not Apache's"
    assert warnings == []


def test_a_property_of_apache_that_is_not_supported_is_named() -> None:
    _, warnings = broker_config({"sendMessageThreadPoolNums": "4", "mapedFileSizeCommitLog": "9"})

    without_effect = "this property is not supported and has no effect"
    assert warnings == [
        f"sendMessageThreadPoolNums: {without_effect}",
        f"mapedFileSizeCommitLog: {without_effect}; did you mean mappedFileSizeCommitLog?",
    ]


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("flushDiskTyp", "flushDiskType"),
        ("flushdisktype", "flushDiskType"),
        ("brokerNmae", "brokerName"),
        ("authenticationEnable", "authenticationEnabled"),
        ("maxConections", "maxConnections"),
        ("bindAdress", "bindAddress"),
        ("storePathRootdir", "storePathRootDir"),
    ],
)
def test_a_misspelt_property_is_refused(misspelt: str, meant: str) -> None:
    """With a warning only, the broker would run without what its operator wants."""
    with pytest.raises(ConfigurationError) as raised:
        broker_config({misspelt: "x"})

    assert str(raised.value) == f"{misspelt}: there is no such property; did you mean {meant}?"


def test_the_properties_of_apache_that_are_like_ours_are_all_accepted() -> None:
    """They were found among all properties of its brokers, of the releases 4.0 to 5.4."""
    ours = [field.encode_name.lower() for field in msgspec.structs.fields(BrokerConfig)]
    for name in _OF_APACHE:
        assert difflib.get_close_matches(name.lower(), ours, n=1, cutoff=_MISSPELT), name

    _, warnings = broker_config(dict.fromkeys(_OF_APACHE, "1"))

    assert len(warnings) == len(_OF_APACHE)


def test_quotas_of_users_without_users_are_told() -> None:
    _, warnings = broker_config({"quotasOfUsers": "shop:100:1000"})
    assert warnings == [
        "quotas of users have no effect without access control: set authenticationEnabled=true"
    ]

    _, warnings = broker_config({"maxBytesPerSecondOfUser": "9", "authenticationEnabled": "true"})
    assert warnings == []


def test_many_properties_that_are_not_supported_are_counted() -> None:
    """A peer may send 15,000 of them: to look for the nearest of each took a second."""
    invented = {f"name{number}": "value" for number in range(15_000)}
    searched = []

    def search(name: str, known: list[str], n: int) -> list[str]:
        searched.append(name)
        return []

    with mock.patch("difflib.get_close_matches", search):
        _, warnings = broker_config({"x" * 100_000: "a long name", **invented})

    assert len(searched) == 50
    assert max(map(len, [*searched, *warnings])) < 200
    assert warnings[-1] == "14951 more properties are not supported and have no effect"


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


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("brokerId", "one", "give a whole number"),
        ("diskMaxUsedSpaceRatio", "0.75", "give a whole number of percent, such as 75"),
        ("transactionTimeOut", "6s", "give a whole number of milliseconds"),
    ],
)
def test_a_wrong_number_is_told_with_its_unit(name: str, value: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        broker_config({name: value})

    assert str(raised.value) == f"{name}={value}: {told}"


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


NUMBERS = [
    field.encode_name
    for field in msgspec.structs.fields(BrokerConfig)
    if int in (field.type, *typing.get_args(field.type))
]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_bounds(name: str) -> None:
    world = BrokerWorld()
    before = world.state.config
    for value in ("9" * 400, "9" * 5_000, str(2**31), f"-{'9' * 400}", str(-(2**31) - 1)):
        with pytest.raises(ConfigurationError, match=name) as raised:
            broker_config({name: value})
        assert len(str(raised.value)) < 400
        answer = world.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"{name}={value}".encode())
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert len(answer.remark or "") < 400
    assert world.state.config is before


@pytest.mark.parametrize("name", NUMBERS)
def test_the_largest_number_that_is_taken_is_one_to_work_with(name: str) -> None:
    world = BrokerWorld()
    field = next(f for f in msgspec.structs.fields(BrokerConfig) if f.encode_name == name)
    bounds = [m for m in typing.get_args(field.type) if isinstance(m, msgspec.Meta)]
    for most in (bounds[0].le, bounds[0].ge):
        world.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"{name}={most}".encode())
        for _ in range(3):
            world.now_ms += 3_600_000
            world.core.housekeeping.run_some()
            world.core.tick(world.now_ms)
            world.finish_turn()
        assert world.ask(RequestCode.GET_BROKER_CONFIG).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("levels", ["9" * 400 + "d", "\N{SUPERSCRIPT TWO}s", "1s 9999999999s", "s"])
def test_a_delay_that_no_clock_can_add_is_refused(levels: str) -> None:
    with pytest.raises(ConfigurationError, match="messageDelayLevel") as raised:
        broker_config({"messageDelayLevel": levels})
    assert len(str(raised.value)) < 400


def test_an_hour_of_four_thousand_digits_is_refused_in_few_words() -> None:
    for hours in ("9" * 400, "9" * 5_000):
        with pytest.raises(ConfigurationError, match="deleteWhen") as raised:
            broker_config({"deleteWhen": hours})
        assert len(str(raised.value)) < 400
