"""Handlers that fail, hang, answer nonsense, exit, or die with their process: nothing is lost."""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from tests.client.cluster import QUICK, Seen, in_topic, numbered, play
from tests.conformance.clusters import Cluster
from tests.waiting import eventually, run_process

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

pytestmark = pytest.mark.processes

PATIENT = msgspec.structs.replace(QUICK, hold_seconds_max=0.05)


def raises() -> object:
    raise ValueError("no")


def exits() -> object:
    sys.exit(3)


def cancels() -> object:
    raise asyncio.CancelledError


NONSENSE: Sequence[Callable[[], object]] = (
    *(raises, exits, cancels),
    *(lambda: None, list, lambda: ["yes"], lambda: "yes", lambda: 7),
)
"""What a handler does on each call before it does well."""


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_whatever_else_a_handler_does_is_an_attempt_and_the_message_comes_again(
    cluster: Cluster, topic: str, group: str, kind: str
) -> None:
    deeds = list(NONSENSE)
    seen: list[tuple[bytes, int]] = []

    def handle(messages: Sequence[ReceivedMessage]) -> Any:
        seen.extend((message.body, message.reconsume_times) for message in messages)
        return deeds.pop(0)() if deeds else [CONSUMED]

    async def handle_on_the_loop(messages: Sequence[ReceivedMessage]) -> Any:
        return handle(messages)

    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=PATIENT) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 2, keys=1))
            handler = handle if kind == "def" else handle_on_the_loop
            await client.consume(Subscription(group=group, topics={topic: "*"}), handler)
            await eventually(lambda: len(seen) == len(NONSENSE) + 2)
            assert seen == [*((b"0", at) for at in range(len(NONSENSE) + 1)), (b"1", 0)]

    play(scene())


def test_a_process_that_its_handler_kills_loses_no_message(
    cluster: Cluster, topic: str, group: str
) -> None:
    """Without order: Apache's broker keeps the queue locks of the dead for a minute."""

    async def scene() -> None:
        names = cluster.name_server_address
        async with AsyncClient(names, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            await client.send_many(numbered(topic, 10))
            command = [sys.executable, "-m", "tests.conformance.doomed_consumer"]
            run = asyncio.to_thread(run_process, [*command, names, topic, group], timeout=30)
            assert (await run).returncode == -signal.SIGKILL
            seen = Seen()
            wanted = Subscription(group=group, topics={topic: "*"}, ordered=False)
            await client.consume(wanted, seen)
            await eventually(lambda: {int(body) for body in seen.bodies} == set(range(10)))

    play(scene())


def test_a_handler_that_hangs_holds_up_its_group_alone_and_no_more_than_the_limits(
    cluster: Cluster, topic: str, group: str
) -> None:
    settings = msgspec.structs.replace(QUICK, held_count_max=50)
    count, may_end = 400, threading.Event()
    handled: list[bytes] = []

    def hangs(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        may_end.wait(60)
        handled.extend(message.body for message in messages)
        return [CONSUMED] * len(messages)

    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=settings) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, count))
            wanted = Subscription(group=group, topics={topic: "*"}, concurrency=4)
            consumer = await client.consume(wanted, hangs)
            masters = len(cluster.masters)
            await eventually(lambda: len(in_topic(consumer, topic)) == masters)
            queues = [each for each in consumer.group.assigned if each.queue.topic == topic]
            await eventually(lambda: not any(each.has_room for each in queues))
            other = Seen()
            others = Subscription(group=f"{group}-other", topics={topic: "*"})
            await client.consume(others, other)
            await eventually(lambda: len(other.messages) == count)
            pulled_at_most = settings.held_count_max + settings.pull_count
            assert all(each.unfinished <= pulled_at_most for each in queues)
            may_end.set()
            await eventually(lambda: len(handled) == count)

    play(scene())


def test_closing_lets_the_running_handler_finish_and_starts_nothing_more(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
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
            progress = (await client.consumer_progress(group, topic)).values()
            assert [each for each in progress if each[1]] == [(1, 3)]

    play(scene())


def test_a_handler_that_does_not_end_is_cancelled_and_its_message_comes_again(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        impatient = msgspec.structs.replace(QUICK, close_timeout_seconds=0.05)
        subscription = Subscription(group=group, topics={topic: "*"}, ordered=False)
        async with (
            AsyncClient(cluster.name_server_address, settings=impatient) as client,
            AsyncClient(cluster.name_server_address, settings=QUICK) as heir,
        ):
            await client.create_topic(topic, 1)
            await client.send(Message(topic=topic, body=b"x"))
            started = asyncio.Event()

            async def handle(_: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
                started.set()
                await asyncio.Event().wait()
                return []

            consumer = await client.consume(subscription, handle)
            await started.wait()
            await consumer.close()
            seen = Seen()
            await heir.consume(subscription, seen)
            await eventually(lambda: seen.bodies == [b"x"])

    play(scene())


def test_offsets_that_an_administrator_resets_are_read_again(
    cluster: Cluster, topic: str, group: str
) -> None:
    """As a broker without server-side reset tells its clients: RESET_CONSUMER_CLIENT_OFFSET."""

    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
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
