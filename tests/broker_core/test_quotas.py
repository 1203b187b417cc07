"""Quotas: who sends or reads more than is allowed is refused, and told when to come again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC, BrokerWorld, send_header

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.broker_core.quotas import Quotas, Rate, parse_quotas
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.errors import ConfigurationError
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.remote_faults import RETRY_AFTER_MS


def quotas(every: Rate, **named: Rate) -> Quotas:
    return Quotas("topic", ResponseCode.SYSTEM_BUSY, every, named)


def taken(of: Quotas, count: int, now_ms: int = 0, size: int = 1, name: str = "t") -> int:
    """Take one message at a time, at most `count`; return how many were let through."""
    for number in range(count):
        try:
            of.take(name, 1, size, now_ms)
        except RequestRefused:
            return number
    return count


def test_a_second_lets_as_many_through_as_its_rate_and_the_next_one_as_many_again() -> None:
    of = quotas(Rate(messages=10))
    assert taken(of, 100) == 10
    assert taken(of, 100, 500) == 5
    assert taken(of, 100, 1_500) == 10
    assert taken(of, 100, 9_000) == 10, "what was not used is not saved up"
    assert of.refused == 4


def test_bytes_count_too_and_a_message_larger_than_a_second_is_let_through_once() -> None:
    of = quotas(Rate(size=1_000))
    assert taken(of, 5, size=4_000) == 1
    with pytest.raises(RequestRefused) as refused:
        of.take("t", 1, 1, 0)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert refused.value.ext == {RETRY_AFTER_MS: "3001"}
    assert "busy" in refused.value.remark
    assert taken(of, 5, 3_000) == 0
    assert taken(of, 5, 3_001) == 1


def test_each_name_has_its_own_bucket_and_some_have_a_rate_of_their_own() -> None:
    of = quotas(Rate(messages=2), many=Rate(messages=5), free=Rate())
    assert [taken(of, 9, name=name) for name in ("t", "u", "many", "free")] == [2, 2, 5, 9]


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    of = quotas(Rate(messages=10))
    assert taken(of, 5, 10_000) == 5
    assert taken(of, 100, 0) == 5
    assert taken(of, 100, 100) == 1


YEAR_MS = 365 * 24 * 3600 * 1000


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS])
def test_a_clock_that_jumps_gives_one_burst_at_most_and_no_longer_pause(jump_ms: int) -> None:
    of = quotas(Rate(messages=10))
    now_ms = 2 * YEAR_MS
    taken(of, 100, now_ms)
    now_ms += jump_ms
    assert taken(of, 100, now_ms) <= 10
    with pytest.raises(RequestRefused) as refused:
        of.take("t", 1, 1, now_ms)
    assert refused.value.ext is not None
    assert int(refused.value.ext[RETRY_AFTER_MS]) <= 101
    assert taken(of, 100, now_ms + 500) == 5, "the new clock counts on"


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(-100, 3_000), st.integers(1, 60)), max_size=40),
)
def test_over_any_time_at_most_its_rate_and_one_burst_are_let_through(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    of = quotas(Rate(messages=rate))
    now_ms = passed_ms = 0
    through = 0
    for later_ms, count in steps:
        now_ms += later_ms
        passed_ms += max(later_ms, 0)
        through += taken(of, count, now_ms)
        of.invariants()
        assert through <= rate + passed_ms * rate / 1000 + 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a:1:2", {"a": Rate(1, 2)}),
        (" a:1:2; %RETRY%b:0:9 ;", {"a": Rate(1, 2), "%RETRY%b": Rate(0, 9)}),
    ],
)
def test_quotas_of_names_are_read(text: str, found: dict[str, Rate]) -> None:
    assert parse_quotas(text) == found


@pytest.mark.parametrize(
    "text",
    ["a", "a:1", ":1:2", "a:1:2:3", "a:x:2", "a:-1:2", "a:1:²", "a:1:99999999999", "x" * 70_000],
)
def test_quotas_that_do_not_parse_are_an_error_of_their_property(text: str) -> None:
    with pytest.raises(ConfigurationError, match="quotasOfTopics: "):
        broker_config({"quotasOfTopics": text})


def send(world: BrokerWorld, topic: str = TOPIC, body: bytes = b"x") -> Command:
    return world.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic, 0), body)


def pull(world: BrokerWorld, offset: int, count: int = 32, group: str = GROUP) -> Command:
    header = {
        "consumerGroup": group,
        "topic": TOPIC,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": count,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
    }
    return world.ask(RequestCode.PULL_MESSAGE, header)


def sent(world: BrokerWorld, count: int, topic: str = TOPIC) -> list[int]:
    return [send(world, topic).code for _ in range(count)]


def test_sends_beyond_the_quota_of_a_topic_are_refused_as_busy_and_stored_later() -> None:
    world = BrokerWorld(maxMessagesPerSecondOfTopic="3")
    assert send(world).code == 0, "it creates the topic, and is free"
    assert sent(world, 5) == [0, 0, 0, 2, 2]
    assert sent(world, 2, "other") == [0, 0]
    refusal = send(world)
    assert int(refusal.ext_fields[RETRY_AFTER_MS]) <= 334
    assert f"topic {TOPIC}" in (refusal.remark or "")
    world.now_ms += int(refusal.ext_fields[RETRY_AFTER_MS])
    assert sent(world, 2) == [0, 2]
    assert len(world.records(TOPIC)) == 5
    assert world.state.quotas.refusals() == {"topic": 4, "group": 0, "user": 0}


def test_a_batch_counts_as_many_as_it_has() -> None:
    world = BrokerWorld(quotasOfTopics=f"{TOPIC}:10:0")
    send(world)
    header = {**send_header(TOPIC, 0), "m": "true"}
    body = encode_batch([BatchItem(0, b"x", b"")] * 25)
    assert world.ask(RequestCode.SEND_BATCH_MESSAGE, header, body).code == 0
    refusal = send(world)
    assert refusal.code == 2
    assert 1_500 <= int(refusal.ext_fields[RETRY_AFTER_MS]) <= 1_501


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quotasOfGroups", f"{GROUP}:8:0"),
        ("maxMessagesPerSecondOfGroup", "8"),
        ("maxBytesPerSecondOfGroup", "1500"),  # five records have 1,010
    ],
)
def test_pulls_beyond_the_quota_of_a_group_are_refused_and_other_groups_read_on(
    name: str, value: str
) -> None:
    world = BrokerWorld(None, **{name: value})
    sent(world, 20)
    assert pull(world, 0, 5).code == 0, "it creates the group, and is free"
    assert pull(world, 0, 5).code == 0
    assert pull(world, 5, 5).code == 0
    refusal = pull(world, 10, 5)
    assert refusal.code == ResponseCode.FLOW_CONTROL
    assert [pull(world, 10, 5, "another").code for _ in range(2)] == [0, 0]
    world.now_ms += int(refusal.ext_fields[RETRY_AFTER_MS])
    assert pull(world, 10, 5).code == 0
    assert world.state.quotas.refusals()["group"] == 1


def test_quotas_change_while_the_broker_runs_and_refusals_go_on_counting() -> None:
    world = BrokerWorld(maxMessagesPerSecondOfTopic="1")
    sent(world, 3)
    for text in ("maxMessagesPerSecondOfTopic=0", "maxBytesPerSecondOfTopic=10"):
        assert world.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode()).code == 0
    assert world.state.quotas.refusals()["topic"] == 1
    assert [send(world, body=b"x" * 10).code for _ in range(2)] == [0, 2]
    assert world.state.quotas.refusals()["topic"] == 2
    assert world.now_ms == START_MS


def test_without_a_quota_nothing_is_counted() -> None:
    world = BrokerWorld()
    assert world.state.quotas.topics is None
    assert world.state.quotas.groups is None
    assert set(sent(world, 50)) == {0}
