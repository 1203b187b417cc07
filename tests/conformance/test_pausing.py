"""Both faces pause, go on and tell their lag, at a real broker."""

import threading
from collections.abc import Sequence

import pytest
from tests.client.cluster import QUICK, Seen, in_topic, numbered, play
from tests.conformance.clusters import Cluster
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

CLUSTERS = ("bundled", "apache")
pytestmark = pytest.mark.processes


def test_a_paused_consumer_waits_and_catches_up(cluster: Cluster, topic: str, group: str) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            seen = Seen()
            consumer = await client.consume(Subscription(group=group, topics={topic: "*"}), seen)
            await client.send(Message(topic=topic, body=b"first"))
            await eventually(lambda: len(seen.messages) == 1)
            consumer.pause()
            await client.send_many(numbered(topic, 10, keys=2))

            async def are_all_there() -> bool:  # Apache shows them a moment after it has answered
                (progress,) = (await client.consumer_progress(group, topic)).values()
                return progress[1] == 11

            await eventually(are_all_there)
            assert len(seen.messages) == 1
            assert in_topic(consumer, topic) == [0], "it stays a member"
            consumer.resume()
            await eventually(lambda: len(seen.messages) == 11)
            await eventually(lambda: not any(lag.behind for lag in consumer.lag().values()))

    play(scene())


def test_the_synchronous_face_pauses_one_queue_and_goes_on(
    cluster: Cluster, topic: str, group: str
) -> None:
    seen: list[bytes] = []
    came = threading.Event()

    def take(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        seen.extend(message.body for message in messages)
        came.set()
        return [CONSUMED] * len(messages)

    with Client(cluster.name_server_address, settings=QUICK) as client:
        client.create_topic(topic, 2)
        route = client.topic_route(topic)
        consumer = client.consume(Subscription(group=group, topics={topic: "*"}), take)
        consumer.pause(route.readable[:1])
        for queue, message in zip(route.readable, numbered(topic, 2), strict=True):
            client.send(message, queue=queue)
        assert came.wait(30)
        assert seen == [b"1"]
        came.clear()
        consumer.resume(route.readable[:1])
        assert came.wait(30)
        assert seen == [b"1", b"0"]
        assert {queue.topic for queue in consumer.lag()} <= {topic, f"%RETRY%{group}"}
