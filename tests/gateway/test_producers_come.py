"""Producers that come and name topics: brokers are told once, and asked little."""

import asyncio
from typing import Any

import pytest
from tests.gateway.fake_cluster import NAMES, FakeCluster, Told
from tests.gateway.test_check_backs import settled

from reliable_mq.gateway.acting import ACTING, Acting
from reliable_mq.gateway.asyncio_gateway import Gateway
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import reply


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def come(gateway: Gateway, number: int, *topics: str) -> None:
    named = [{"name": each} for each in topics]
    command = TYPES["TelemetryCommand"](
        settings={"client_type": 1, "publishing": {"topics": named}}
    )
    ACTING.set(Acting("10.0.0.1"))
    caller = Caller(f"client-{number}", "10.0.0.1", {}, float("inf"))
    await gateway.told(caller, command, Told())


def test_many_producers_of_an_ordinary_topic_cost_one_look(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> int:
        gateway = Gateway(cluster.ask, [NAMES], "test")
        looks = 0
        kinds = gateway.upstream.kinds

        async def counted(topic: str) -> Any:
            nonlocal looks
            looks += 1
            return await kinds(topic)

        monkeypatch.setattr(gateway.upstream, "kinds", counted)
        for number in range(300):
            await come(gateway, number, "orders")
        await settled()
        return looks

    assert asyncio.run(run()) <= 2
    assert cluster.counts[Ask.HEART_BEAT] == 0


def test_a_topic_that_does_not_exist_is_looked_up_once_a_minute(cluster: FakeCluster) -> None:
    async def run() -> None:
        gateway = Gateway(cluster.ask, [NAMES], "test")
        for number in range(20):
            await come(gateway, number, *(f"unknown-{each}" for each in range(50)))
        await settled()
        await gateway._beats.beat_once()
        await gateway._beats.beat_once()

    asyncio.run(run())
    assert cluster.counts[Ask.GET_ROUTEINFO_BY_TOPIC] <= 60


def test_the_second_transactional_topic_is_told_with_the_first(cluster: FakeCluster) -> None:
    cluster.answers[Ask.GET_TOPIC_CONFIG] = lambda command: reply(
        command, body=b'{"attributes":{"message.type":"TRANSACTION"}}'
    )

    async def run() -> None:
        gateway = Gateway(cluster.ask, [NAMES], "test")
        await come(gateway, 1, "orders")
        await settled()
        await come(gateway, 2, "orders")
        await settled()

    asyncio.run(run())
    assert cluster.counts[Ask.HEART_BEAT] == 1  # the second one is known already
