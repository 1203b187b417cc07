"""The consumer's shell, with a client that plays the world's part."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import pytest
from tests.client.script import World, group_of, says

from reliable_mq.client.asyncio_consumer import AsyncPushConsumer
from reliable_mq.client.consumer_group import ConsumerGroup
from reliable_mq.client.flow import Flow
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.subscription import CONSUMED, Outcome, Subscription
from reliable_mq.message import ReceivedMessage
from reliable_mq.wire.codes import RequestCode, ResponseCode

T = TypeVar("T")

QUICK = ClientSettings(rebalance_retry_seconds=0.001)


class ScriptedClient:
    """Runs flows over a scripted world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.left: list[str] = []

    async def run(self, flow: Flow[T]) -> T:
        await asyncio.sleep(0)
        return self.world.play(flow)

    async def heartbeat(self) -> None:
        return None

    async def leave_group(self, group: ConsumerGroup) -> None:
        self.left.append(group.name)


async def consumed(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    return [CONSUMED] * len(messages)


def test_what_stands_in_the_way_is_told_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        world = World()
        group = group_of(
            world, Subscription(group="g", topics={"t": "*"}), queues={"a": 1}, settings=QUICK
        )
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = says(
            ResponseCode.SYSTEM_ERROR, remark="no consumer for this group"
        )
        consumer = AsyncPushConsumer(ScriptedClient(world), group, consumed)
        await consumer.start()
        while len(world.calls_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) < 12:
            await asyncio.sleep(0)
        warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warnings) == 2, "the topic and its retry topic, once each"
        assert "topic t cannot be read: code 1: no consumer for this group" in warnings[1]
        body = msgspec.json.encode({"consumerIdList": ["another"]})
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = says(body=body)
        while "reads all its topics again" not in caplog.text:
            await asyncio.sleep(0)
        await consumer.close()

    caplog.set_level(logging.INFO)
    asyncio.run(asyncio.wait_for(scene(), 10))


def test_closing_leaves_the_group_once_also_when_it_is_asked_for_twice() -> None:
    async def scene() -> None:
        world = World()
        group = group_of(world, Subscription(group="g", topics={"t": "*"}), queues={"a": 1})
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = says(ResponseCode.SYSTEM_ERROR)
        client = ScriptedClient(world)
        consumer = AsyncPushConsumer(client, group, consumed)
        await consumer.start()
        await asyncio.gather(consumer.close(), consumer.close())
        assert client.left == ["g"]

    asyncio.run(asyncio.wait_for(scene(), 10))
