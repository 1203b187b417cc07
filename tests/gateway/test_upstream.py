"""What the endpoint asks brokers for itself, and what it makes of their answers."""

import asyncio

import pytest
from tests.gateway.fake_cluster import NAMES, FakeCluster

from reliable_mq.gateway.asyncio_gateway import Gateway
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command, reply


def test_a_broker_that_is_busy_changes_neither_the_order_nor_the_types() -> None:
    cluster = FakeCluster()

    async def run() -> None:
        def busy(command: Command) -> Command:
            return reply(command, 2, "busy")

        cluster.answers |= {Ask.GET_SUBSCRIPTIONGROUP_CONFIG: busy, Ask.GET_TOPIC_CONFIG: busy}
        gateway = Gateway(cluster.ask, [NAMES], "test")
        for asked in (gateway.upstream.group("g"), gateway.upstream.kinds("orders")):
            with pytest.raises(RpcRefused) as caught:
                await asked
            assert caught.value.code is Code.TOO_MANY_REQUESTS
        cluster.answers |= {
            Ask.GET_SUBSCRIPTIONGROUP_CONFIG: lambda command: reply(command, 26, "none"),
            Ask.GET_TOPIC_CONFIG: lambda command: reply(command, 17, "none"),
        }
        assert not (await gateway.upstream.group("g")).is_orderly
        assert await gateway.upstream.kinds("orders")

    asyncio.run(run())
