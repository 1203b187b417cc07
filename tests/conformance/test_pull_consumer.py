"""The pull consumer against real brokers: what polls return, seeks, commits, members that share."""

import asyncio
import time
from collections import defaultdict
from datetime import UTC, datetime

import msgspec
import pytest
from tests.client.cluster import QUICK, numbered, play
from tests.conformance.clusters import Cluster
from tests.waiting import eventually, until

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.asyncio_pull_consumer import AsyncPullConsumer
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import NoRoute, UsageError
from reliable_mq.message import Message, MessageQueue, ReceivedMessage

pytestmark = pytest.mark.processes

POLL_SECONDS = 20.0


async def polled(pull: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    """Poll until there are `count` messages."""
    messages: list[ReceivedMessage] = []
    while len(messages) < count:
        more = await pull.poll(POLL_SECONDS)
        assert more, f"only {len(messages)} of {count} messages came"
        messages += more
    return messages


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)


def by_queue(messages: list[ReceivedMessage]) -> dict[MessageQueue, list[int]]:
    table: dict[MessageQueue, list[int]] = defaultdict(list)
    for message in messages:
        table[message.queue].append(message.queue_offset)
    return table


async def readable(client: AsyncClient, topic: str) -> list[MessageQueue]:
    return list((await client.topic_route(topic)).readable)


def test_what_was_polled_and_committed_does_not_come_to_the_group_again(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            await client.send_many(numbered(topic, 100))
            async with client.pull_consumer(group, auto_commit=False) as pull:
                await pull.subscribe({topic: "*"})
                messages = await polled(pull, 100)
                assert numbers(messages) == list(range(100))
                for offsets in by_queue(messages).values():
                    assert offsets == list(range(len(offsets)))
                assert set((await pull.committed()).values()) == {None}
                assert set((await pull.lag()).values()) == {0}
                await pull.commit()
                assert await pull.committed() == await pull.end_offsets()
            await client.send(Message(topic=topic, body=b"1000"))
            async with client.pull_consumer(group) as pull:
                await pull.subscribe({topic: "*"})
                assert numbers(await polled(pull, 1)) == [1000]

    play(scene())


def test_what_the_last_poll_returned_comes_again_when_nobody_said_that_it_is_handled(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 50))
            batches: list[list[ReceivedMessage]] = []
            async with client.pull_consumer(group) as pull:
                await pull.subscribe({topic: "*"})
                while sum(map(len, batches)) < 50:
                    batches.append(await pull.poll(POLL_SECONDS, 7))
            async with client.pull_consumer(group) as pull:
                await pull.subscribe({topic: "*"})
                again = await polled(pull, len(batches[-1]))
                assert numbers(again) == numbers(batches[-1])

    play(scene())


def test_seeks_in_a_queue_that_never_had_a_message_go_to_its_begin(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            queues = await readable(client, topic)
            async with client.pull_consumer(group) as pull:
                await pull.assign(queues)
                await pull.seek_to_begin()
                assert len(queues) >= 2  # two at each master
                assert [await pull.position(queue) for queue in queues] == [0] * len(queues)
                assert await pull.begin_offsets() == dict.fromkeys(queues, 0)
                await pull.seek_to_end()
                await pull.seek_to_time(datetime.now(UTC))
                await client.send(Message(topic=topic, body=b"first"), queue=queues[1])
                assert [m.body for m in await polled(pull, 1)] == [b"first"]

    play(scene())


def test_seeks_go_to_an_offset_an_end_and_a_time_and_lose_nothing_behind_it(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            queue = (await readable(client, topic))[0]
            for at in range(40):
                await client.send(Message(topic=topic, body=b"%d" % at), queue=queue)
            async with client.pull_consumer(group) as pull:
                await pull.assign([queue])
                before = await polled(pull, 40)
                late = before[-1].store_time_ms + 2
                await eventually(lambda: time.time() * 1000 > late + 2)
                await client.send(Message(topic=topic, body=b"40"), queue=queue)
                await pull.seek(queue, 33)
                assert await pull.position(queue) == 33
                assert numbers(await polled(pull, 8)) == list(range(33, 41))
                await pull.seek_to_begin()
                assert numbers(await polled(pull, 41)) == list(range(41))
                await pull.seek_to_time(datetime.fromtimestamp(late / 1000, UTC), queue)
                assert numbers(await polled(pull, 1)) == [40]
                await pull.seek_to_begin(queue)
                await pull.seek_to_end(queue)  # while it pulls from the beginning
                await client.send(Message(topic=topic, body=b"41"), queue=queue)
                assert numbers(await polled(pull, 1)) == [41]
                assert await pull.begin_offsets() == {queue: 0}
                assert await pull.committed() == {queue: None}

    play(scene())


def test_a_seek_beyond_the_end_reads_on_where_the_queue_ends(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            queue = (await readable(client, topic))[0]
            await client.send(Message(topic=topic, body=b"0"), queue=queue)
            async with client.pull_consumer(group) as pull:
                await pull.assign([queue])
                assert numbers(await polled(pull, 1)) == [0]
                await pull.seek(queue, 500)
                assert await pull.poll(0) == []
                positions: list[int] = []
                while positions[-1:] != [1]:
                    positions.append(await pull.position(queue))
                    await pull.poll(0.05)
                await client.send(Message(topic=topic, body=b"1"), queue=queue)
                assert numbers(await polled(pull, 1)) == [1]

    play(scene())


def test_members_share_queues_and_are_told_which_come_and_go(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        address = cluster.name_server_address
        async with (
            AsyncClient(address, settings=QUICK) as client,
            AsyncClient(address, settings=QUICK) as another,
        ):
            await client.create_topic(topic, 4)
            every = set(await readable(client, topic))
            told: list[tuple[str, set[MessageQueue]]] = []
            first = client.pull_consumer(group, auto_commit=False)

            async def revoked(queues: list[MessageQueue]) -> None:
                await first.commit(dict.fromkeys(queues, 0))
                told.append(("revoked", set(queues)))

            await first.subscribe(
                {topic: "*"},
                on_assigned=lambda queues: told.append(("assigned", set(queues))),
                on_revoked=revoked,
            )
            await eventually(lambda: told == [("assigned", every)])
            second = another.pull_consumer(group)
            await second.subscribe({topic: "*"})
            await eventually(lambda: len(second.queues) == len(every) // 2)
            await eventually(lambda: first.queues | second.queues == every and len(told) == 2)
            assert not first.queues & second.queues
            assert told[1] == ("revoked", second.queues)
            committed = await second.committed()
            assert set(committed.values()) == {0}
            await client.send_many(numbered(topic, 40))
            seen: list[ReceivedMessage] = []
            while len(seen) < 40:
                seen += await first.poll(0.1) + await second.poll(0.1)
            assert numbers(seen) == list(range(40))
            await second.close()
            await eventually(lambda: first.queues == every)
            await first.close()
            assert told[-1] == ("revoked", every)

    play(scene())


def test_a_paused_queue_waits_and_the_others_go_on(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            waits, goes_on = (await readable(client, topic))[:2]
            async with client.pull_consumer(group) as pull:
                await pull.assign([waits, goes_on])
                await pull.pause(waits)
                await client.send(Message(topic=topic, body=b"1"), queue=waits)
                await client.send(Message(topic=topic, body=b"2"), queue=goes_on)
                assert numbers(await polled(pull, 1)) == [2]
                assert await pull.poll(0.05) == []
                await pull.resume()
                assert numbers(await polled(pull, 1)) == [1]

    play(scene())


def test_queues_are_assigned_anew_and_those_that_stay_go_on_where_they_are(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 3)
            queues = (await readable(client, topic))[:3]
            for at in range(9):
                await client.send(Message(topic=topic, body=b"%d" % at), queue=queues[at % 3])
            async with client.pull_consumer(group, auto_commit=True) as pull:
                await pull.assign(queues[:2])
                assert numbers(await polled(pull, 6)) == [0, 1, 3, 4, 6, 7]
                await pull.assign(queues[1:])
                assert pull.queues == set(queues[1:])
                assert numbers(await polled(pull, 3)) == [2, 5, 8]
                await pull.assign(queues)
                await eventually(lambda: pull.queues == set(queues))
                await pull.poll(0.05)  # what was polled before is committed, or comes again
                with pytest.raises(NoRoute, match="no name server knows"):
                    await pull.assign([MessageQueue(topic, queues[0].broker_name, 99)])
                with pytest.raises(NoRoute):
                    await pull.assign([MessageQueue(f"{topic}-never", "broker-a", 0)])
                assert pull.queues == set(queues)

    play(scene())


def test_a_consumer_that_reads_nothing_polls_twice_or_is_closed_says_so(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            pull = client.pull_consumer(group)
            with pytest.raises(UsageError, match="subscribe or assign first"):
                await pull.poll()
            await pull.subscribe({topic: "*"})
            for again in (pull.subscribe({topic: "*"}), pull.assign([])):
                with pytest.raises(UsageError):
                    await again
            with pytest.raises(UsageError, match="consumes for group"):
                await client.pull_consumer(group).subscribe({topic: "*"})
            waiting = asyncio.create_task(pull.poll(POLL_SECONDS))
            await asyncio.sleep(0)
            with pytest.raises(UsageError, match="another poll is in progress"):
                await pull.poll()
            with pytest.raises(UsageError, match="no time zone"):
                await pull.seek_to_time(datetime(2026, 1, 1))  # noqa: DTZ001
            await pull.close()
            assert await waiting == []
            for verb in (pull.poll(), pull.commit(), pull.seek_to_begin()):
                with pytest.raises(UsageError, match="closed"):
                    await verb

    play(scene())


def test_threads_poll_seek_and_commit_with_the_same_verbs(
    cluster: Cluster, topic: str, group: str
) -> None:
    with Client(cluster.name_server_address, settings=QUICK) as client:
        client.create_topic(topic, 1)
        queue = client.topic_route(topic).readable[0]
        for at in range(5):
            client.send(Message(topic=topic, body=b"%d" % at), queue=queue)
        told: list[list[MessageQueue]] = []
        with client.pull_consumer(group) as pull:
            pull.subscribe({topic: "*"}, on_assigned=told.append)
            seen: list[ReceivedMessage] = []
            until(lambda: seen.extend(pull.poll(POLL_SECONDS)) or len(seen) >= 5)  # type: ignore[func-returns-value]
            assert numbers(seen) == [0, 1, 2, 3, 4]
            assert queue in told[0]
            assert pull.commit_async({queue: 3}).result(POLL_SECONDS) is None
            assert pull.committed(queue) == {queue: 3}
            pull.seek(queue, 4)
            assert numbers(pull.poll(POLL_SECONDS)) == [4]
            assert (pull.position(queue), pull.lag(queue)) == (5, {queue: 0})


def test_in_a_namespace_all_queues_have_the_names_of_the_application(
    cluster: Cluster, topic: str, group: str
) -> None:
    settings = msgspec.structs.replace(QUICK, namespace="shop")

    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=settings) as client:
            await client.create_topic(topic, 1)
            queue = (await readable(client, topic))[0]
            assert queue.topic == topic
            told: list[list[MessageQueue]] = []
            await client.send(Message(topic=topic, body=b"0"), queue=queue)
            async with client.pull_consumer(group) as pull:
                await pull.subscribe({topic: "*"}, on_assigned=told.append)
                (message,) = await polled(pull, 1)
                assert (message.topic, message.queue) == (topic, queue)
                assert queue in told[0]
                await pull.commit({queue: 1})
                await pull.pause(queue)
                assert (pull.paused, await pull.committed(queue)) == ({queue}, {queue: 1})
                await pull.resume(queue)
                await pull.seek(queue, 0)
                assert numbers(await polled(pull, 1)) == [0]
                assert (await pull.lag(queue), await pull.position(queue)) == ({queue: 0}, 1)
                await pull.commit()
            async with client.pull_consumer(group) as pull:
                await pull.assign([queue])
                assert pull.queues == {queue}
                await pull.seek_to_begin(queue)
                assert numbers(await polled(pull, 1)) == [0]
            wanted = Subscription(group=group, topics={topic: "*"}, ordered=False)
            async with await client.simple_consumer(wanted) as simple:
                await client.send(Message(topic=topic, body=b"1"), queue=queue)
                (message,) = await simple.receive(timeout=POLL_SECONDS)
                assert (message.topic, message.queue) == (topic, queue)
                await simple.extend(message, 60)
                await simple.ack(message)
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            assert (await client.topic_route(f"shop%{topic}")).readable

    play(scene())
