"""By the message: a broker that is killed loses nothing, and twenty members share four queues."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.test_by_message import by_message, client_of, new_topic, send, texts
from tests.waiting import eventually, run_scene
from tests.with_java import INTEROP

from reliable_mq import AsyncClient, Consumed, ReceivedMessage
from reliable_mq.errors import Unavailable

pytestmark = INTEROP

MEMBERS = 20
SLOW_SECONDS = 5.0
QUICK_SECONDS = SLOW_SECONDS / 100


async def is_sent(client: AsyncClient, topic: str, body: str) -> bool:
    """Send a message; return whether a broker has it, which may have begun a moment ago."""
    try:
        await send(client, topic, [body])
    except Unavailable:
        return False
    return True


def test_a_broker_that_is_killed_loses_no_message_and_its_members_go_on(tmp_path: Path) -> None:
    async def scene(broker: ReliableMQBroker) -> None:
        seen: Counter[str] = Counter()

        async def handle(messages: Sequence[ReceivedMessage]) -> Consumed:
            await asyncio.sleep(0)
            seen.update(message.body.decode() for message in messages)
            return Consumed()

        async with client_of(broker) as client:
            topic, group = await new_topic(client)
            await client.consume(by_message(group, topic, invisible_seconds=3.0), handle)
            for round_of in range(4):
                for each in texts(50):
                    await eventually(partial(is_sent, client, topic, f"{round_of}-{each}"))
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            await eventually(lambda: len(seen) == 200, lambda: len(seen))

    with ReliableMQBroker(tmp_path) as broker:
        run_scene(scene(broker))


def test_twenty_members_share_four_queues_evenly_beside_a_slow_one(tmp_path: Path) -> None:
    async def scene(broker: ReliableMQBroker) -> None:
        counts: Counter[int] = Counter()

        def handler(number: int) -> Any:
            seconds = QUICK_SECONDS if number else SLOW_SECONDS

            async def handle(_: Sequence[ReceivedMessage]) -> Consumed:
                now = asyncio.get_running_loop().time
                until = now() + seconds
                await eventually(lambda: now() >= until)
                counts[number] += 1
                return Consumed()

            return handle

        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(broker)) for _ in range(MEMBERS)]
            topic, group = await new_topic(clients[0])
            for number, client in enumerate(clients):
                await client.consume(by_message(group, topic, concurrency=1), handler(number))
            total = 40 * (MEMBERS - 1)
            now = asyncio.get_running_loop().time
            begun = now()
            await send(clients[0], topic, texts(total))
            await eventually(lambda: counts.total() >= total - 1)
            others = [counts[number] for number in range(1, MEMBERS)]
            each = mean(others)
            assert all(abs(count - each) <= 0.2 * each for count in others), counts
            assert counts[0] <= 2 + (now() - begun) / SLOW_SECONDS

    with ReliableMQBroker(tmp_path) as broker:
        run_scene(scene(broker))
