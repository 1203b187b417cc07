"""Our own consumer while a tool resets its group: idle, and in the middle of a message."""

import asyncio
from collections.abc import Sequence

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.raw_client import RawClient
from tests.client.cluster import QUICK, Seen, numbered, play
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode

pytestmark = pytest.mark.processes


def reset(broker: ReliableMQBroker, topic: str, group: str, offset: int) -> None:
    with RawClient(broker.address) as tool:
        header = {"topic": topic, "group": group, "timestamp": 0, "queueId": 0, "offset": offset}
        assert tool.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header).code == 0


@pytest.mark.parametrize("ordered", [True, False])
def test_a_consumer_that_waits_reads_again_from_where_its_group_was_reset_to(
    broker: ReliableMQBroker, topic: str, group: str, ordered: bool
) -> None:
    async def scene() -> None:
        async with AsyncClient(broker.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 10))
            seen = Seen()
            wanted = Subscription(group=group, topics={topic: "*"}, ordered=ordered)
            await client.consume(wanted, seen)
            await eventually(lambda: len(seen.bodies) == 10)
            await asyncio.to_thread(reset, broker, topic, group, 7)
            await eventually(lambda: len(seen.bodies) == 13)
            assert seen.bodies[10:] == [b"7", b"8", b"9"]

    play(scene())


@pytest.mark.parametrize("auto_commit", [True, False])
def test_what_is_polled_again_after_a_reset_is_committed_again(
    broker: ReliableMQBroker, topic: str, group: str, auto_commit: bool
) -> None:
    """The client took it for committed, because it had been before the reset."""

    async def scene() -> None:
        async with AsyncClient(broker.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 3))
            pull = client.pull_consumer(group, auto_commit=auto_commit)
            await pull.subscribe({topic: "*"})

            async def handle_all() -> None:
                polled: list[ReceivedMessage] = []
                while len(polled) < 3:
                    polled += await pull.poll()
                await pull.commit()

            async def committed() -> list[int]:
                progress = await client.consumer_progress(group, topic)
                return [done for done, _ in progress.values()]

            await handle_all()
            assert await committed() == [3]
            await asyncio.to_thread(reset, broker, topic, group, 0)
            assert await committed() == [0]
            await handle_all()
            assert await committed() == [3]

    play(scene())


def test_a_reset_in_the_middle_of_a_message_is_not_undone_by_its_end(
    broker: ReliableMQBroker, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(broker.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 3))
            bodies: list[bytes] = []
            goes_on = asyncio.Event()

            async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
                bodies.extend(message.body for message in messages)
                if messages[0].body == b"2":
                    await goes_on.wait()
                return [CONSUMED] * len(messages)

            await client.consume(Subscription(group=group, topics={topic: "*"}), handle)
            await eventually(lambda: bodies == [b"0", b"1", b"2"])
            await asyncio.to_thread(reset, broker, topic, group, 1)
            await client.send(Message(topic=topic, body=b"3"))
            goes_on.set()
            await eventually(lambda: bodies[-3:] == [b"1", b"2", b"3"])

    play(scene())


def status(broker: ReliableMQBroker, topic: str, group: str) -> list[list[int]]:
    """Return what each consumer of the group says of its offsets, as a tool is told."""
    with RawClient(broker.address) as tool:
        answer = tool.ask(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": topic, "group": group}
        )
    consumers = fastjson.loads(answer.body)["consumerTable"]
    return [list(offsets.values()) for offsets in consumers.values()]


def test_a_consumer_tells_how_far_it_has_come(
    broker: ReliableMQBroker, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(broker.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 10))
            seen = Seen()
            await client.consume(Subscription(group=group, topics={topic: "*"}), seen)
            await eventually(lambda: len(seen.bodies) == 10)

            async def is_done() -> bool:
                return await asyncio.to_thread(status, broker, topic, group) == [[10]]

            await eventually(is_done)  # the last one may still be under way

    play(scene())
