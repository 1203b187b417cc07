"""What goes wrong: handlers that fail, members that die, a broker that is killed."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.cluster import (
    QUICK,
    KeyOrder,
    Seen,
    eventually,
    in_topic,
    numbered,
    play,
)

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import CONSUMED, Outcome, Subscription
from reliable_mq.message import Message, ReceivedMessage

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("failure", [ValueError("no"), asyncio.CancelledError()])
def test_a_handler_that_fails_gets_the_message_again(
    broker: ReliableMQBroker, topic: str, group: str, failure: BaseException
) -> None:
    async def scene() -> None:
        async with AsyncClient(broker.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 2, keys=1))
            seen: list[tuple[bytes, int]] = []

            async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
                seen.append((messages[0].body, messages[0].reconsume_times))
                if len(seen) == 1:
                    raise failure
                return [CONSUMED]

            await client.consume(Subscription(group=group, topics={topic: "*"}), handle)
            await eventually(lambda: len(seen) == 3)
            assert seen == [(b"0", 0), (b"0", 1), (b"1", 0)]

    play(scene())


def test_closing_lets_the_running_handler_finish_and_starts_nothing_more(
    broker: ReliableMQBroker, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(broker.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 3, keys=1))
            handled: list[bytes] = []
            may_end = asyncio.Event()

            async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
                handled.append(messages[0].body)
                await may_end.wait()
                return [CONSUMED]

            consumer = await client.consume(Subscription(group=group, topics={topic: "*"}), handle)
            await eventually(lambda: len(handled) == 1)
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(0)
            may_end.set()
            await closing
            assert handled == [b"0"]
            ((committed, maximum),) = (await client.consumer_progress(group, topic)).values()
            assert (committed, maximum) == (1, 3)

    play(scene())


def test_a_handler_that_does_not_end_is_cancelled_and_its_message_comes_again(
    broker: ReliableMQBroker, topic: str, group: str
) -> None:
    async def scene() -> None:
        impatient = msgspec.structs.replace(QUICK, close_timeout=0.05)
        subscription = Subscription(group=group, topics={topic: "*"}, ordered=False)
        async with (
            AsyncClient(broker.name_server_address, settings=impatient) as client,
            AsyncClient(broker.name_server_address, settings=QUICK) as heir,
        ):
            await client.create_topic(topic, 1)
            await client.send(Message(topic=topic, body=b"x"))
            started = asyncio.Event()

            async def handle(_: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
                started.set()
                await asyncio.sleep(3600)
                return []

            consumer = await client.consume(subscription, handle)
            await started.wait()
            await consumer.close()
            seen = Seen()
            await heir.consume(subscription, seen)
            await eventually(lambda: seen.bodies == [b"x"])

    play(scene())


def test_offsets_that_an_administrator_resets_are_read_again(
    broker: ReliableMQBroker, topic: str, group: str
) -> None:
    """As a broker without server-side reset tells its clients: RESET_CONSUMER_CLIENT_OFFSET."""

    async def scene() -> None:
        async with AsyncClient(broker.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 10, keys=1))
            seen = Seen()
            consumer = await client.consume(Subscription(group=group, topics={topic: "*"}), seen)
            await eventually(lambda: len(seen.messages) == 10)
            queue = seen.messages[0].queue
            consumer.reset_offsets({queue: 7})
            await eventually(lambda: len(seen.messages) == 13)
            assert seen.bodies[10:] == [b"7", b"8", b"9"]

    play(scene())


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
            for task in [*doomed._daemons, *dying._daemons, *dying._pullers.values()]:
                task.cancel()
            assert doomed._links is not None
            await doomed._links.close()  # no goodbye: the broker sees the connection end
            await eventually(lambda: len(in_topic(heir, topic)) == 4)
            await client.send_many(numbered(topic, 100, keys=10))
            await eventually(lambda: len(seen.messages) == 100)

    play(scene())


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
                left = numbered(topic, 2000, keys=20)[at : at + 50]
                while left:
                    outcomes = await client.send_many(left)
                    left = [
                        message
                        for message, outcome in zip(left, outcomes, strict=True)
                        if isinstance(outcome, Exception)
                    ]
                    if left:
                        await asyncio.sleep(0.1)
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
