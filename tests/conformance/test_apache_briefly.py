"""One visit to Apache's broker in every run of the tests; the whole suite is `make interop`."""

import pytest
from tests.client.cluster import PATIENT, Seen, numbered, play
from tests.conformance.clusters import running
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.message import CheckBack, Decision, Message
from reliable_mq.outcomes import Retry

pytestmark = [pytest.mark.java, pytest.mark.processes]


async def commits(check: CheckBack) -> Decision:
    return Decision.COMMIT


def test_messages_halves_and_retries_arrive_at_apaches_broker(topic: str, group: str) -> None:
    async def scene(name_servers: str) -> None:
        async with AsyncClient(name_servers, settings=PATIENT) as client:
            await client.create_topic(topic, 4)
            seen = Seen(Retry(after=1))
            wanted = Subscription(group=group, topics={topic: "*"})
            consumer = await client.consume(wanted, seen)
            await client.send(Message(topic=topic, body=b"alone"))
            await eventually(lambda: seen.bodies == [b"alone"])
            await client.send_many(numbered(topic, 100, keys=7))
            await client.transactions.join("halves", commits)
            half = await client.transactions.send(Message(topic=topic, body=b"half"), "halves")
            await client.transactions.end(half, Decision.COMMIT)
            await client.transactions.send(Message(topic=topic, body=b"asked for"), "halves")
            expected = {b"alone", b"asked for", b"half", *(b"%d" % at for at in range(100))}
            await eventually(lambda: seen.bodies.count(b"alone") == 2)
            await eventually(lambda: set(seen.bodies) == expected)
            await consumer.close()
        # Apache's broker stores a half once more with each COMMIT that it hears: one of the end
        # and one of the question that came meanwhile.
        once = [body for body in seen.bodies if body not in (b"alone", b"asked for", b"half")]
        assert len(once) == 100

    with running("apache") as cluster:
        play(scene(cluster.name_server_address))
