"""Offsets of a group that broadcasts: each client goes on where the other one has stopped."""

import asyncio
import platform
from collections.abc import Sequence
from pathlib import Path

from bench.reliable_mq_broker import ReliableMQBroker
from tests.conformance.java_member import Delivery, JavaMember
from tests.waiting import eventually
from tests.with_java import INTEROP, started

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

TOPIC, GROUP = "prices", "caches"
INSTANCE = "member"  # what Member.java is called
QUEUES = 4
FROM_THE_FIRST = Subscription(group=GROUP, topics={TOPIC: "*"}, broadcasting=True)
"""Who does not find its offsets handles all messages once more."""

pytestmark = INTEROP


def test_each_client_reads_the_file_of_offsets_that_the_other_one_has_written(
    tmp_path: Path,
) -> None:
    host = platform.node()
    settings = ClientSettings(
        instance_name=INSTANCE, offset_folder=str(tmp_path / ".rocketmq_offsets")
    )
    by_java: list[Delivery] = []

    async def scene(names: str, java: JavaMember) -> None:
        async with AsyncClient(names) as client:
            await client.create_topic(TOPIC, QUEUES)

            async def sent(word: str) -> set[str]:
                bodies = {f"{word}-{at}" for at in range(2 * QUEUES)}
                for body in sorted(bodies):
                    await client.send(Message(topic=TOPIC, body=body.encode()))
                return bodies

            async def handled_by_java(bodies: set[str]) -> None:
                by_java.clear()
                await asyncio.to_thread(java.ask, "join")
                await eventually(lambda: bodies <= {each.body for each in by_java})
                await asyncio.to_thread(java.ask, "leave")
                assert sorted(each.body for each in by_java) == sorted(bodies)

            await handled_by_java(await sent("one"))
            two = await sent("two")
            assert await handled_here(names, settings, two) == sorted(two)
            await handled_by_java(await sent("three"))
            four = await sent("four")
            assert await handled_here(names, settings, four) == sorted(four)

    with (
        started(ReliableMQBroker(tmp_path / "broker")) as broker,
        JavaMember(
            tmp_path, (broker.name_server_address, GROUP, TOPIC, "broadcast", host), by_java
        ) as java,
    ):
        asyncio.run(scene(broker.name_server_address, java))
    files = list((tmp_path / ".rocketmq_offsets").rglob("offsets.json"))
    assert [file.parent.parent.name for file in files] == [f"{host}@{INSTANCE}"]


async def handled_here(names: str, settings: ClientSettings, expected: set[str]) -> list[str]:
    """Return what our client handles until it has handled what is expected."""
    bodies: list[str] = []

    async def note(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        bodies.extend(message.body.decode() for message in messages)
        return [CONSUMED] * len(messages)

    async with AsyncClient(names, settings=settings) as client:
        consumer = await client.consume(FROM_THE_FIRST, note)
        await eventually(lambda: expected <= set(bodies))
        await consumer.close()
    return sorted(bodies)
