"""Half messages at brokers that ask soon: who answers, how often, in which of two faces."""

import asyncio

import pytest
from tests.client.cluster import QUICK, Seen, play
from tests.conformance.clusters import Cluster
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.message import CheckBack, Decision, Message
from reliable_mq.outcomes import CONSUMED

pytestmark = pytest.mark.processes


async def unknown(check: CheckBack) -> Decision:
    return Decision.UNKNOWN


def test_another_client_of_the_group_answers_for_one_that_is_gone(
    cluster: Cluster, topic: str, group: str
) -> None:
    asked: list[CheckBack] = []

    async def commit(check: CheckBack) -> Decision:
        asked.append(check)
        return Decision.COMMIT

    async def scene() -> None:
        address = cluster.name_server_address
        async with AsyncClient(address, settings=QUICK) as other:
            await other.create_topic(topic, 1)
            seen = Seen()
            await other.consume(
                Subscription(group=group, topics={topic: "*"}, from_where="first"), seen
            )
            async with AsyncClient(address, settings=QUICK) as client:
                await client.transactions.join(f"of-{group}", unknown)
                await client.transactions.send(Message(topic=topic, body=b"late"), f"of-{group}")
            assert seen.messages == []
            # It knows of no topic of the half: that it is asked at all is the heartbeat's doing.
            await other.transactions.join(f"of-{group}", commit)
            await eventually(lambda: bool(seen.messages))
            assert seen.bodies == [b"late"]
            assert asked[0].message.body == b"late"

    play(scene())


def test_unknown_is_asked_again_and_one_question_is_answered_at_a_time(
    cluster: Cluster, topic: str, group: str
) -> None:
    answers = [Decision.UNKNOWN, Decision.ROLLBACK]
    running: list[int] = []
    overlaps: list[int] = []

    async def answer(check: CheckBack) -> Decision:
        overlaps.append(len(running))
        running.append(1)
        await asyncio.sleep(0.25)  # longer than the broker waits before it asks again
        running.pop()
        if len(answers) == 2:
            return answers.pop(0)
        said.set()
        return answers[0]

    said = asyncio.Event()

    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.transactions.join(f"of-{group}", answer)
            await client.transactions.send(Message(topic=topic, body=b"x"), f"of-{group}")
            await said.wait()
            assert overlaps == [0, 0]

    play(scene())


def test_a_synchronous_client_sends_ends_and_answers(
    cluster: Cluster, topic: str, group: str
) -> None:
    decisions = {b"asked": Decision.COMMIT}
    seen: list[bytes] = []

    with Client(cluster.name_server_address, settings=QUICK) as client:
        client.create_topic(topic, 1)
        client.consume(
            Subscription(group=group, topics={topic: "*"}, from_where="first"),
            lambda messages: [seen.append(m.body) or CONSUMED for m in messages],  # type: ignore[func-returns-value]
        )
        client.join_transactions(
            f"of-{group}", lambda check: decisions.get(check.message.body, Decision.UNKNOWN)
        )
        half = client.send_half(Message(topic=topic, body=b"ended"), f"of-{group}")
        client.end_half(half, Decision.COMMIT)
        client.send_half(Message(topic=topic, body=b"asked"), f"of-{group}")

        async def both() -> None:
            await eventually(lambda: len(seen) >= 2)

        play(both())
    assert sorted(seen) == [b"asked", b"ended"]
