"""What goes wrong with our own brokers: members that die, a broker that is killed."""

import asyncio
from collections.abc import Sequence

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.cluster import (
    QUICK,
    KeyOrder,
    Seen,
    in_topic,
    numbered,
    play,
)
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.message import Message

pytestmark = pytest.mark.processes


def test_a_member_that_dies_is_succeeded_as_soon_as_its_connection_ends(
    broker: ReliableMQBroker, topic: str, group: str
) -> None:
    """The bundled broker frees its locks at once; Apache's keeps them beyond the deadline."""

    async def scene() -> None:
        names = broker.name_server_address
        subscription = Subscription(group=group, topics={topic: "*"})
        doomed = AsyncClient(names, settings=QUICK)
        await doomed.start()
        async with AsyncClient(names, settings=QUICK) as client:
            await client.create_topic(topic, 4)
            dying = await doomed.consume(subscription, Seen())
            seen = Seen()
            heir = await client.consume(subscription, seen)
            await eventually(lambda: len(in_topic(dying, topic)) == len(in_topic(heir, topic)) == 2)
            for task in [*doomed._engine._daemons, *dying._daemons, *dying.reader.tasks]:
                task.cancel()
            assert doomed._engine._links is not None
            await doomed._engine._links.close()  # no goodbye: the broker sees the connection end
            await eventually(lambda: len(in_topic(heir, topic)) == 4)
            await client.send_many(numbered(topic, 100, keys=10))
            await eventually(lambda: len(seen.messages) == 100)

    play(scene())


async def send_all(client: AsyncClient, messages: Sequence[Message]) -> None:
    """Send messages, and those again that failed, until the broker has all of them."""
    left = list(messages)

    async def are_sent() -> bool:
        outcomes = await client.send_many(left)
        left[:] = [
            message
            for message, outcome in zip(left, outcomes, strict=True)
            if isinstance(outcome, Exception)
        ]
        return not left

    await eventually(are_sent, lambda: f"{len(left)} are left")


def test_nothing_is_lost_and_order_is_kept_when_the_broker_is_killed(
    broker: ReliableMQBroker, topic: str, group: str
) -> None:
    async def scene() -> None:
        handler = KeyOrder()
        async with AsyncClient(broker.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 4)
            await client.consume(Subscription(group=group, topics={topic: "*"}), handler)
            restart: asyncio.Future[None] | None = None
            loop = asyncio.get_running_loop()
            for at in range(0, 2000, 50):
                if at in {500, 1200}:
                    broker.kill()
                    restart = loop.run_in_executor(None, broker.start)
                await send_all(client, numbered(topic, 2000, keys=20)[at : at + 50])
            if restart is not None:
                await restart
            await eventually(
                lambda: {n for ns in handler.seen.values() for n in ns} == set(range(2000))
            )
        assert handler.overlaps == []
        for numbers in handler.seen.values():
            firsts = list(dict.fromkeys(numbers))
            assert firsts == sorted(firsts), "apart from repetitions each key is in order"

    play(scene())
