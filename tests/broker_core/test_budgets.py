"""What one request may cost: beyond its budget it is continued later, or refused."""

import gc

import pytest
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    BrokerWorld,
    pull_header,
)

from reliable_mq.broker_core.filter import sql92
from reliable_mq.broker_core.filter.tokens import FilterRefused
from reliable_mq.broker_core.requests.handlers import _SENDS as SENDS
from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, QueueUnit
from reliable_mq.limits import (
    ATTRIBUTES_LENGTH_MAX,
    FILTER_LENGTH_MAX,
    FILTER_PARTS_MAX,
    REQUEST_BODY_SIZE_MAX,
    ROWS_MAX,
    SLOW_TEXT_SIZE_MAX,
    SUBSCRIPTIONS_MAX,
    TAGS_MAX,
)
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Count the expressions that are parsed."""
    seen: list[object] = []
    read = sql92._Parser.disjunction

    def reading(parser: sql92._Parser) -> object:
        seen.append(parser)
        return read(parser)

    monkeypatch.setattr(sql92._Parser, "disjunction", reading)
    return seen


def subscribe(world: BrokerWorld, **wanted: object) -> Command:
    return world.subscribe(subscriptionDataSet=[{"topic": TOPIC, "subVersion": 1, **wanted}])


def registered_pull(world: BrokerWorld) -> Command:
    return world.ask(Ask.PULL_MESSAGE, pull_header(0, sysFlag=0))


def test_a_heartbeats_filter_is_read_when_somebody_pulls_by_it_and_not_before(
    parsed: list[object],
) -> None:
    world = BrokerWorld()
    world.create_topic()
    assert subscribe(world, subString="price > 707", expressionType="SQL92").code == Code.SUCCESS
    assert registered_pull(world).code == Code.SYSTEM_ERROR, "filters are off"
    assert not parsed

    world = BrokerWorld(enablePropertyFilter="true")
    world.create_topic()
    subscribe(world, subString="price > 707", expressionType="SQL92")
    assert not parsed
    for _ in range(3):
        assert registered_pull(world).code == Code.PULL_NOT_FOUND
    assert len(parsed) == 1


@pytest.mark.parametrize(
    "text",
    ["price > '" + "x" * FILTER_LENGTH_MAX, " OR ".join(["price = 1"] * FILTER_PARTS_MAX)],
    ids=["long", "of many parts"],
)
def test_an_expression_that_is_too_large_is_refused(text: str) -> None:
    with pytest.raises(FilterRefused, match="at most"):
        sql92.compile_filter(text)


def test_few_filters_are_remembered_when_they_are_large() -> None:
    for number in range(1_000):
        sql92.compile_filter(f"price = {number} AND name <> '{'x' * 10_000}'")
    kept = [one for one in gc.get_objects() if isinstance(one, sql92.Filter)]
    assert sum(len(one.text) for one in kept) < 2 * 1024 * 1024
    assert sql92.compile_filter("price = 7") is sql92.compile_filter("price = 7")


@pytest.mark.parametrize(
    "wanted",
    [
        {"codeSet": list(range(TAGS_MAX + 1))},
        {"tagsSet": [str(tag) for tag in range(TAGS_MAX + 1)]},
        {"subString": "x" * (FILTER_LENGTH_MAX + 1)},
    ],
    ids=["codes", "tags", "text"],
)
def test_a_heartbeat_with_a_subscription_that_is_too_large_is_refused_and_changes_nothing(
    world: BrokerWorld, wanted: dict[str, object]
) -> None:
    world.create_topic()
    assert subscribe(world, **wanted).code == Code.INVALID_PARAMETER
    assert world.state.clients.consumer_group(GROUP) is None


def test_a_heartbeat_with_too_many_subscriptions_is_refused(world: BrokerWorld) -> None:
    many = [{"topic": str(number)} for number in range(SUBSCRIPTIONS_MAX + 1)]
    assert world.subscribe(subscriptionDataSet=many).code == Code.INVALID_PARAMETER
    assert world.state.clients.consumer_group(GROUP) is None


def test_a_pull_by_too_many_tags_is_refused(world: BrokerWorld) -> None:
    world.create_topic()
    tags = [f"t{number}" for number in range(TAGS_MAX + 1)]
    refused = world.ask(Ask.PULL_MESSAGE, pull_header(0, subscription="||".join(tags)))
    assert refused.code == Code.INVALID_PARAMETER
    allowed = world.ask(Ask.PULL_MESSAGE, pull_header(0, subscription="||".join(tags[1:])))
    assert allowed.code == Code.PULL_NOT_FOUND


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_a_pull_that_asks_for_a_million_messages_looks_at_no_more_than_others(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = BrokerWorld(enablePropertyFilter="true")
    world.create_topic()
    for _ in range(1_000):
        world.send(b"x", TAGS="blue")
    looked_at: list[int] = []
    units = ConsumeQueue.units

    def counted(queue: ConsumeQueue, index: int, count: int) -> list[QueueUnit]:
        found = units(queue, index, count)
        looked_at.append(len(found))
        return found

    monkeypatch.setattr(ConsumeQueue, "units", counted)
    wanted = {"subscription": "red" if kind == "TAG" else "price = 1", "expressionType": kind}
    answer = world.ask(Ask.PULL_MESSAGE, pull_header(0, maxMsgNums=2**31 - 1, **wanted))
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "800")
    assert sum(looked_at) <= 900


def test_a_pull_by_a_large_filter_looks_at_fewer_messages() -> None:
    world = BrokerWorld(enablePropertyFilter="true")
    world.create_topic()
    for _ in range(200):
        world.send(b"x", price="5")
    large = " OR ".join(f"price = {number}" for number in range(1_000, 1_300))
    answer = world.ask(Ask.PULL_MESSAGE, pull_header(0, subscription=large, expressionType="SQL92"))
    assert answer.code == Code.PULL_RETRY_IMMEDIATELY
    assert 0 < int(answer.ext_fields["nextBeginOffset"]) < 100


@pytest.mark.parametrize("code", sorted(HANDLERS.keys() - SENDS))
def test_a_body_that_is_too_long_is_refused_before_it_is_read(
    world: BrokerWorld, code: int
) -> None:
    refused = world.ask(code, {}, bytes(REQUEST_BODY_SIZE_MAX + 1))
    assert refused.code == Code.INVALID_PARAMETER
    assert "bytes, at most" in (refused.remark or "")


def rows(name: str, count: int) -> str:
    return ",".join(f'{{"{name}":"n{number}"}}' for number in range(count))


def test_a_request_that_makes_too_many_topics_or_groups_makes_none(world: BrokerWorld) -> None:
    for code, table, name in (
        (Ask.UPDATE_AND_CREATE_TOPIC_LIST, "topicConfigList", "topicName"),
        (Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, "groupConfigList", "groupName"),
    ):
        body = f'{{"{table}":[{rows(name, ROWS_MAX + 1)}]}}'.encode()
        assert world.ask(code, {}, body).code == Code.INVALID_PARAMETER
    assert world.state.topics.get("n0") is None
    assert world.state.groups.get("n0") is None


def test_attributes_that_are_too_long_are_refused(world: BrokerWorld) -> None:
    topic = {"topic": "t", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": "false"}
    topic |= {"topicFilterType": "SINGLE_TAG", "defaultTopic": "x"}
    change = "+queue.type=SimpleCQ,"
    many = change * (ATTRIBUTES_LENGTH_MAX // len(change) + 1)
    refused = world.ask(Ask.UPDATE_AND_CREATE_TOPIC, {**topic, "attributes": many})
    assert refused.code == Code.INVALID_PARAMETER
    fits = {**topic, "attributes": many[: -len(change)]}
    assert world.ask(Ask.UPDATE_AND_CREATE_TOPIC, fits).code == Code.SUCCESS


def test_properties_that_are_too_long_change_nothing(world: BrokerWorld) -> None:
    body = b"fileReservedTime=7\n" * (SLOW_TEXT_SIZE_MAX // 19 + 1)
    assert world.ask(Ask.UPDATE_BROKER_CONFIG, {}, body).code == Code.SYSTEM_ERROR
    assert world.state.config.reserved_hours == 72
