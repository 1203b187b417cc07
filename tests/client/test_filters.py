"""SQL92 subscriptions: brokers are asked first, told in heartbeats and pulls, and filter."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.cluster import QUICK, Seen, play
from tests.client.script import World, fails, group_of, in_turn, says
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.membership import consumer_data
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.filters import check_filters
from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.consuming.subscription import Sql, Subscription
from reliable_mq.errors import ConfigurationError, ConnectionLost
from reliable_mq.message import Message, MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.headers import PullMessageHeader

CHECK = RequestCode.CHECK_CLIENT_CONFIG
RED = Sql("colour = 'red'")


def scene(topics: dict[str, str | Sql]) -> tuple[World, ConsumerGroup]:
    world = World()
    group = group_of(world, Subscription(group="g", topics=topics), queues={"a": 1, "b": 1})
    return world, group


def test_every_broker_of_the_topic_is_asked_whether_it_can() -> None:
    world, group = scene({"t": RED, "u": "tag"})
    world.answers[CHECK] = says()
    world.play(check_filters(group))
    calls = world.calls_of(CHECK)
    assert [call.address for call in calls] == ["a:10911", "b:10911"]
    asked = msgspec.json.decode(calls[0].command.body)
    assert (asked["group"], asked["clientId"]) == ("g", "client-a")
    said = asked["subscriptionData"]
    assert (said["expressionType"], said["subString"]) == ("SQL92", "colour = 'red'")
    assert said["tagsSet"] == said["codeSet"] == []


def test_a_broker_that_cannot_is_named_with_its_own_words() -> None:
    world, group = scene({"t": RED})
    refusal = says(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark="Encountered 'x'")
    world.answers[CHECK] = in_turn(says(), refusal)
    with pytest.raises(ConfigurationError, match=r"broker b cannot .* topic t .*: code 23: Enc"):
        world.play(check_filters(group))


def test_nobody_who_is_away_keeps_a_consumer_from_starting() -> None:
    world, group = scene({"t": RED, "nowhere": RED})
    group.routes._routes.pop("nowhere")
    world.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = says(ResponseCode.TOPIC_NOT_EXIST)
    world.answers[CHECK] = fails(ConnectionLost("away"))
    world.play(check_filters(group))
    assert [call.address for call in world.calls_of(CHECK)] == ["a:10911", "b:10911"]
    asked = world.calls_of(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert [call.command.ext_fields["topic"] for call in asked] == ["nowhere"]


def test_a_subscription_by_tags_asks_nobody() -> None:
    world, group = scene({"t": "*"})
    world.play(check_filters(group))
    assert world.calls == []


def test_heartbeats_and_pulls_say_how_each_topic_is_filtered() -> None:
    world, group = scene({"t": RED, "u": "tag"})
    said = {each["topic"]: each for each in consumer_data(group)["subscriptionDataSet"]}
    kinds = {topic: each["expressionType"] for topic, each in said.items()}
    assert kinds == {"t": "SQL92", "u": "TAG", "%RETRY%g": "TAG"}
    assert said["t"]["subString"] == "colour = 'red'"
    world.answers[RequestCode.PULL_MESSAGE] = fails(ConnectionLost("away"))
    for topic in ("t", "u"):
        assigned = group.assign(MessageQueue(topic, "a", 0))
        assigned.start_at(0)
        world.play(pull_once(group, assigned))
        header = PullMessageHeader.decode(world.calls[-1].command.ext_fields)
        assert header.expression_type == kinds[topic]


def test_an_empty_expression_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is empty"):
        Sql(" ")


@pytest.fixture(scope="module")
def filtering() -> Iterator[ReliableMQBroker]:
    settings = {"enablePropertyFilter": "true"}
    with (
        tempfile.TemporaryDirectory() as directory,
        ReliableMQBroker(Path(directory), settings=settings) as broker,
    ):
        yield broker


@pytest.mark.processes
def test_only_messages_that_fit_the_expression_come(filtering: ReliableMQBroker) -> None:
    async def play_it() -> None:
        async with AsyncClient(filtering.name_server_address, settings=QUICK) as client:
            await client.create_topic("t", 2)
            wrong = Subscription(group="g", topics={"t": Sql("colour = = 'red'")})
            seen = Seen()
            with pytest.raises(ConfigurationError, match="cannot filter topic t for group g"):
                await client.consume(wrong, seen)
            subscription = Subscription(group="g", topics={"t": Sql("size > 1 AND TAGS = 'a'")})
            await client.consume(subscription, seen)
            for size in range(4):
                for tag in "ab":
                    properties = {"size": str(size)}
                    body = f"{size}{tag}".encode()
                    await client.send(Message(topic="t", body=body, tag=tag, properties=properties))
            await eventually(lambda: len(seen.bodies) >= 2)
            await client.send(Message(topic="t", body=b"end", tag="a", properties={"size": "9"}))
            await eventually(lambda: b"end" in seen.bodies)
            assert sorted(seen.bodies) == [b"2a", b"3a", b"end"]

    play(play_it())
