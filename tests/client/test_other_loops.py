"""A client on asyncio that is used on another event loop than its own: one clear error."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.client.servers import Servers
from tests.client.test_asyncio_client import QUICK, message
from tests.waiting import run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import UsageError

VERBS: tuple[Callable[[AsyncClient], Awaitable[Any]], ...] = (
    lambda client: client.send(message()),
    lambda client: client.send_oneway(message()),
    lambda client: client.send_batch([message()]),
    lambda client: client.request(message()),
    lambda client: client.create_topic("t"),
    lambda client: client.topic_route("t"),
    lambda client: client.admin.topics.names(),
    lambda client: client.consume(Subscription(group="g", topics={"t": "*"}), lambda _: []),
    lambda client: client.simple_consumer(Subscription(group="g", topics={"t": "*"})),
    lambda client: client.close(),
)


async def refused(client: AsyncClient) -> None:
    for verb in VERBS:
        with pytest.raises(UsageError, match="another event loop"):
            await verb(client)


def test_a_client_whose_loop_has_ended_says_so_on_the_next_one() -> None:
    async def use(client: AsyncClient) -> None:
        await client.start()
        await client.send(message())

    with Servers() as servers:
        client = AsyncClient(servers.address, settings=QUICK)
        run_scene(use(client))
        run_scene(refused(client))


def test_a_client_says_so_on_another_threads_loop_and_goes_on_on_its_own() -> None:
    async def scene(servers: Servers) -> None:
        async with AsyncClient(servers.address, settings=QUICK) as client:
            await client.send(message())
            await asyncio.to_thread(run_scene, refused(client))
            await client.send(message())

    with Servers() as servers:
        run_scene(scene(servers))
        assert len(servers.broker.bodies) == 2
