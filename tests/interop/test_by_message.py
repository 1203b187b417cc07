"""Our consumers by the message, at Apache's broker and at ours: what one shows, both must show."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.pop_broker import passed
from tests.waiting import SECONDS_MAX, Budget, eventually, run_scene
from tests.with_java import INTEROP, Broker, started

from reliable_mq import (
    AsyncClient,
    AsyncSimpleConsumer,
    ClientSettings,
    Consumed,
    Message,
    ReceivedMessage,
    Reject,
    Retry,
    Sql,
    Subscription,
)
from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.errors import LeaseLost, NoRoute
from reliable_mq.wire.codes import RequestCode

pytestmark = INTEROP

SETTINGS = {"enablePropertyFilter": "true"}
QUICK = ClientSettings(rebalance_retry_seconds=0.2, pull_suspend_seconds=5.0, hold_seconds=0.2)
OURS_HAS_POP = RequestCode.POP_MESSAGE in HANDLERS
NAMES = itertools.count(1)


@pytest.fixture(
    scope="module",
    params=[
        "apache",
        pytest.param(
            "ours",
            marks=pytest.mark.skipif(not OURS_HAS_POP, reason="our broker has no POP_MESSAGE yet"),
        ),
    ],
)
def broker(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    made: Broker
    if request.param == "apache":
        made = ApacheRocketMQ(folder, "ASYNC_FLUSH", SETTINGS, flags=SMALL_BROKER_FLAGS)
    else:
        made = ReliableMQBroker(folder, settings=SETTINGS)
    with started(made):
        yield made


@asynccontextmanager
async def client_of(broker: Broker) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(broker.name_server_address, settings=QUICK) as client:
        yield client


async def new_topic(client: AsyncClient, queues: int = 4) -> tuple[str, str]:
    """Create a topic; return its name, and that of a group which nobody has used."""
    number = next(NAMES)
    await client.create_topic(f"topic{number}", queues)
    return f"topic{number}", f"group{number}"


async def send(client: AsyncClient, topic: str, bodies: Sequence[str], **options: Any) -> None:
    for body in bodies:
        await client.send(Message(topic=topic, body=body.encode(), **options))


def by_message(group: str, topic: str, wanted: str | Sql = "*", **options: Any) -> Subscription:
    options = {"invisible_seconds": 5.0, "concurrency": 4} | options
    return Subscription(group=group, topics={topic: wanted}, by="message", ordered=False, **options)


async def come(
    receiver: AsyncSimpleConsumer, count: int, handling: float = 60.0
) -> list[ReceivedMessage]:
    """Receive until so many messages have come; Apache brings some back many seconds late."""
    found: list[ReceivedMessage] = []
    budget = Budget(SECONDS_MAX)
    while len(found) < count and budget.is_left():
        found += await receiver.receive(16, timeout=5.0, handling=handling)
    return found


def bodies_of(messages: Sequence[ReceivedMessage]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


def texts(count: int) -> list[str]:
    return [f"{number:03}" for number in range(count)]


def test_what_is_received_and_acknowledged_comes_once(broker: Broker) -> None:
    async def scene() -> None:
        async with client_of(broker) as client:
            topic, group = await new_topic(client)
            await send(client, topic, texts(40))
            wanted = by_message(group, topic)
            seen: list[str] = []
            async with await client.simple_consumer(wanted) as receiver:
                while len(seen) < 40:
                    messages = await receiver.receive(16, timeout=5.0, handling=6.0)
                    await receiver.ack(*messages)
                    seen += bodies_of(messages)
                assert sorted(seen) == texts(40)
                assert await receiver.receive(16, timeout=8.0, handling=6.0) == []

    run_scene(scene())


def test_what_nobody_acknowledges_comes_again_as_the_next_attempt(broker: Broker) -> None:
    async def scene() -> None:
        async with client_of(broker) as client:
            topic, group = await new_topic(client)
            await send(client, topic, ["kept", "handled"])
            async with await client.simple_consumer(by_message(group, topic)) as receiver:
                first = await come(receiver, 2, handling=5.0)
                (kept,) = [each for each in first if each.body == b"kept"]
                (handled,) = [each for each in first if each.body == b"handled"]
                await receiver.ack(handled)
                with pytest.raises(LeaseLost, match="it was settled already"):
                    await receiver.ack(handled)
                again = await come(receiver, 1)
                assert [(each.body, each.reconsume_times) for each in again] == [(b"kept", 1)]
                assert again[0].topic == topic
                assert again[0].message_id == kept.message_id
                with pytest.raises(LeaseLost, match="its handling time is over"):
                    await receiver.ack(kept)
                with pytest.raises(LeaseLost, match="its handling time is over"):
                    await receiver.extend(kept, 5.0)
                await receiver.ack(*again)
                assert await receiver.receive(16, timeout=8.0, handling=5.0) == []

    run_scene(scene())


def test_a_message_that_is_extended_does_not_come_meanwhile(broker: Broker) -> None:
    async def scene() -> None:
        async with client_of(broker) as client:
            topic, group = await new_topic(client)
            await send(client, topic, ["long"])
            async with await client.simple_consumer(by_message(group, topic)) as receiver:
                (message,) = await come(receiver, 1, handling=5.0)
                await receiver.extend(message, 20.0)
                await receiver.extend(message, 12.0)
                assert await receiver.receive(1, timeout=8.0) == []
                await receiver.ack(message)
                assert await receiver.receive(1, timeout=8.0) == []

    run_scene(scene())


def test_a_message_that_is_retried_comes_after_its_wait(broker: Broker) -> None:
    async def scene() -> None:
        async with client_of(broker) as client:
            topic, group = await new_topic(client)
            await send(client, topic, ["again"])
            now = asyncio.get_running_loop().time
            async with await client.simple_consumer(by_message(group, topic)) as receiver:
                (message,) = await come(receiver, 1)
                begun = now()
                await receiver.retry(message, after=3.0)
                again = await come(receiver, 1)
                assert [each.reconsume_times for each in again] == [1]
                assert now() - begun > 2.9
                await receiver.reject(again[0], "it is refused")
                assert await receiver.receive(1, timeout=4.0) == []
            await eventually_dead(client, group, ["again"])

    run_scene(scene())


def test_a_handler_gets_each_message_and_filters_hold(broker: Broker) -> None:
    async def scene() -> None:
        async with client_of(broker) as client:
            topic, group = await new_topic(client)
            await send(client, topic, texts(20), tag="paid")
            await send(client, topic, ["refused"] * 5, tag="refused")
            await send(client, topic, ["big"] * 3, tag="refused", properties={"size": "7"})
            paid: list[ReceivedMessage] = []
            sized: list[ReceivedMessage] = []

            def into(found: list[ReceivedMessage]) -> Any:
                async def handle(messages: Sequence[ReceivedMessage]) -> list[Consumed]:
                    found.extend(messages)
                    return [Consumed()] * len(messages)

                return handle

            await client.consume(by_message(f"{group}-tags", topic, "paid || none"), into(paid))
            big = by_message(f"{group}-sql", topic, Sql("size BETWEEN 5 AND 9"))
            await client.consume(big, into(sized))
            await eventually(lambda: len(paid) >= 20 and len(sized) >= 3)
            await passed(7.0)  # longer than a lease: nothing comes again
            assert bodies_of(paid) == texts(20)
            assert bodies_of(sized) == ["big"] * 3

    run_scene(scene())


def test_failed_messages_are_retried_and_become_dead_letters(broker: Broker) -> None:
    async def scene() -> None:
        async with client_of(broker) as client:
            topic, group = await new_topic(client)
            await send(client, topic, ["good", "bad", "refused", "busy"])
            attempts: Counter[str] = Counter()

            async def handle(messages: Sequence[ReceivedMessage]) -> Any:
                (message,) = messages
                name = message.body.decode()
                attempts[name] += 1
                if name == "bad":
                    raise ValueError("it is bad")
                if name == "refused":
                    return Reject("never")
                if name == "busy" and attempts[name] < 3:
                    return Retry(0.1, counts=False)
                return Consumed()

            wanted = by_message(group, topic, max_attempts=3, retry_waits=(1.0,))
            await client.consume(wanted, handle)
            await eventually(lambda: attempts["bad"] == 3 and attempts["busy"] == 3)
            await eventually_dead(client, group, ["bad", "refused"])
            assert attempts == {"good": 1, "bad": 3, "refused": 1, "busy": 3}

    run_scene(scene())


async def eventually_dead(client: AsyncClient, group: str, bodies: list[str]) -> None:
    found: list[str] = []
    budget = Budget(30.0)
    while budget.is_left() and found != bodies:
        with suppress(NoRoute):  # nothing is dead yet
            letters = [letter async for letter in client.admin.dead_letters.of_group(group)]
            found = bodies_of(letters)
        await passed(0.2)
    assert found == bodies


def test_a_long_handler_keeps_its_message_and_close_gives_the_rest_back(broker: Broker) -> None:
    async def scene() -> None:
        async with client_of(broker) as first, client_of(broker) as second:
            topic, group = await new_topic(first)
            await send(first, topic, texts(6))
            began: list[str] = []
            ended: list[str] = []
            go_on = asyncio.Event()

            async def slow(messages: Sequence[ReceivedMessage]) -> Consumed:
                began.append(messages[0].body.decode())
                await go_on.wait()
                ended.append(messages[0].body.decode())
                return Consumed()

            others: list[ReceivedMessage] = []

            async def quick(messages: Sequence[ReceivedMessage]) -> Consumed:
                others.extend(messages)
                return Consumed()

            wanted = by_message(group, topic, invisible_seconds=3.0, concurrency=2)
            consumer = await first.consume(wanted, slow)
            await eventually(lambda: len(began) == 2)
            await passed(9.0)  # three times the lease
            assert len(began) == 2
            await second.consume(by_message(group, topic, invisible_seconds=3.0), quick)
            await eventually(lambda: len(others) == 4)
            go_on.set()
            await eventually(lambda: len(ended) == 2)
            await consumer.close()
            await passed(6.0)
            assert sorted(began + bodies_of(others)) == texts(6)

    run_scene(scene())


def test_a_group_goes_on_by_the_message_where_it_stopped_by_the_queue(broker: Broker) -> None:
    """Messages that it had sent back to its retry topic are read, too."""

    async def scene() -> None:
        async with client_of(broker) as client:
            topic, group = await new_topic(client)
            await send(client, topic, texts(5))
            seen: list[str] = []

            async def first(messages: Sequence[ReceivedMessage]) -> Any:
                seen.append(messages[0].body.decode())
                return Retry(1.0) if seen[-1] == "003" else Consumed()

            by_queue = Subscription(group=group, topics={topic: "*"}, ordered=False)
            consumer = await client.consume(by_queue, first)
            await eventually(lambda: len(seen) >= 5)
            await consumer.close()
            await send(client, topic, ["new"])
            rest: list[ReceivedMessage] = []

            async def then(messages: Sequence[ReceivedMessage]) -> Consumed:
                rest.extend(messages)
                return Consumed()

            await client.consume(by_message(group, topic), then)
            await eventually(lambda: len(rest) >= 2)
            assert bodies_of(rest) == ["003", "new"]
            assert {message.topic for message in rest} == {topic}

    run_scene(scene())
