"""The simple consumer against real brokers: leases, acknowledgements, order, what comes again."""

import pytest
from tests.client.cluster import QUICK, numbered, play
from tests.conformance.clusters import Cluster
from tests.waiting import eventually, until

from reliable_mq.client.administering.thread_browser import Browser
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.asyncio_simple_consumer import AsyncSimpleConsumer
from reliable_mq.client.consuming.settling import DEAD_LETTER_REASON
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ConfigurationError, LeaseLost, UsageError
from reliable_mq.message import Message, ReceivedMessage

pytestmark = pytest.mark.processes

RECEIVE_SECONDS = 20.0


async def received(simple: AsyncSimpleConsumer, count: int) -> list[ReceivedMessage]:
    """Receive and acknowledge until there were `count` messages."""
    messages: list[ReceivedMessage] = []
    while len(messages) < count:
        more = await simple.receive(timeout=RECEIVE_SECONDS)
        assert more, f"only {len(messages)} of {count} messages came"
        await simple.ack(*more)
        messages += more
    return messages


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)


def test_what_is_acknowledged_does_not_come_again_and_what_is_not_goes_to_the_next_member(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            await client.send_many(numbered(topic, 60))
            wanted = Subscription(group=group, topics={topic: "*"}, ordered=False)
            async with await client.simple_consumer(wanted) as simple:
                done = await received(simple, 60)
                await client.send(Message(topic=topic, body=b"60"))
                (left,) = await simple.receive(timeout=RECEIVE_SECONDS)
            with pytest.raises(UsageError, match="closed"):
                await simple.ack(left)
            assert numbers(done) == list(range(60))
            async with await client.simple_consumer(wanted) as simple:
                assert numbers(await received(simple, 1)) == [60]
            progress = await client.consumer_progress(group, topic)
            assert all(committed == maximum for committed, maximum in progress.values())

    play(scene())


@pytest.mark.parametrize("key", ["", "k"])
def test_what_nobody_acknowledges_in_time_comes_again_and_the_late_one_is_told(
    cluster: Cluster, topic: str, group: str, key: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send(Message(topic=topic, body=b"1", ordering_key=key))
            wanted = Subscription(group=group, topics={topic: "*"})
            async with await client.simple_consumer(wanted) as simple:
                (late,) = await simple.receive(timeout=RECEIVE_SECONDS, handling=0.05)
                (again,) = await simple.receive(timeout=RECEIVE_SECONDS)
                assert again.message_id == late.message_id
                assert (late.reconsume_times, again.reconsume_times) == (0, 1)
                with pytest.raises(LeaseLost, match="is not yours any more"):
                    await simple.ack(late)
                with pytest.raises(LeaseLost):
                    await simple.ack(late, again)  # the other one is acknowledged
                with pytest.raises(LeaseLost):
                    await simple.extend(again, 10)

    play(scene())


def test_a_lease_that_is_extended_outlasts_one_that_is_not(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            for key in ("slow", "lost"):
                await client.send(Message(topic=topic, body=key.encode(), ordering_key=key))
            wanted = Subscription(group=group, topics={topic: "*"})
            async with await client.simple_consumer(wanted) as simple:
                taken: dict[str, ReceivedMessage] = {}
                while "slow" not in taken:
                    for message in await simple.receive(timeout=RECEIVE_SECONDS, handling=0.3):
                        taken[message.ordering_key] = message
                await simple.extend(taken["slow"], 60)
                while "lost" not in taken or taken["lost"].reconsume_times == 0:
                    for message in await simple.receive(timeout=RECEIVE_SECONDS, handling=0.3):
                        taken[message.ordering_key] = message
                assert taken["slow"].reconsume_times == 0
                await simple.ack(taken["slow"])

    play(scene())


def test_of_one_ordering_key_the_next_message_comes_when_the_one_before_is_acknowledged(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            await client.send_many(numbered(topic, 30, keys=3))
            wanted = Subscription(group=group, topics={topic: "*"})
            seen: dict[str, list[int]] = {}
            async with await client.simple_consumer(wanted) as simple:
                failed = False
                while sum(map(len, seen.values())) < 30:
                    messages = await simple.receive(timeout=RECEIVE_SECONDS)
                    keys = [message.ordering_key for message in messages]
                    assert len(keys) == len(set(keys))
                    for message in messages:
                        if message.ordering_key == "key-1" and not failed:
                            failed = True
                            await simple.retry(message, after=0.05)
                            continue
                        seen.setdefault(message.ordering_key, []).append(int(message.body))
                        await simple.ack(message)
            assert seen == {f"key-{key}": list(range(key, 30, 3)) for key in range(3)}

    play(scene())


def test_what_is_given_up_is_a_dead_letter_with_its_reason(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send(Message(topic=topic, body=b"poison"))
            wanted = Subscription(group=group, topics={topic: "*"}, max_attempts=2)
            async with await client.simple_consumer(wanted) as simple:
                (message,) = await simple.receive(timeout=RECEIVE_SECONDS)
                await simple.reject(message, "cannot be read")

    play(scene())
    with Browser(cluster.name_server_address) as browser:
        (letter,) = browser.messages(f"%DLQ%{group}")
    assert letter.body == b"poison"
    assert letter.properties[DEAD_LETTER_REASON] == "cannot be read"


def test_members_share_queues_and_what_moves_waits_until_it_is_acknowledged(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        address = cluster.name_server_address
        async with (
            AsyncClient(address, settings=QUICK) as client,
            AsyncClient(address, settings=QUICK) as another,
        ):
            await client.create_topic(topic, 2)
            await client.send_many(numbered(topic, 20, keys=10))
            wanted = Subscription(group=group, topics={topic: "*"})
            first = await client.simple_consumer(wanted)
            held: list[ReceivedMessage] = []
            while len(held) < 10:  # one of each key
                held += await first.receive(timeout=RECEIVE_SECONDS)
            second = await another.simple_consumer(wanted)
            group_of_first = first.group
            await eventually(
                lambda: any(
                    each.leaving and each.queue.topic == topic for each in group_of_first.all_queues
                )
            )
            assert not any(queue.topic == topic for queue in second.queues)
            await first.ack(*held)
            seen = list(held)
            while len(seen) < 20:
                for simple in (first, second):
                    more = await simple.receive(timeout=0.1)
                    await simple.ack(*more)
                    seen += more
            assert numbers(seen) == list(range(20))
            await eventually(lambda: any(queue.topic == topic for queue in second.queues))

    play(scene())


def test_threads_receive_and_acknowledge_with_the_same_verbs(
    cluster: Cluster, topic: str, group: str
) -> None:
    with Client(cluster.name_server_address, settings=QUICK) as client:
        client.create_topic(topic, 1)
        for at in range(3):
            client.send(Message(topic=topic, body=b"%d" % at, ordering_key="k"))
        wanted = Subscription(group=group, topics={topic: "*"})
        with client.simple_consumer(wanted) as simple:
            with pytest.raises(UsageError, match="handling"):
                simple.receive(handling=0)
            (first,) = simple.receive(timeout=RECEIVE_SECONDS)
            simple.extend(first, 60)
            simple.retry(first, after=0.01)
            seen: list[int] = []

            def have_come() -> bool:
                for message in simple.receive(timeout=RECEIVE_SECONDS):
                    seen.append(int(message.body))
                    simple.ack(message)
                return len(seen) >= 3

            until(have_come)
            assert seen == [0, 1, 2]
        broadcast = Subscription(group=group, topics={topic: "*"}, broadcasting=True)
        with pytest.raises(ConfigurationError, match="cannot broadcast"):
            client.simple_consumer(broadcast)
