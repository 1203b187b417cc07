"""Administration against real brokers: the bundled one, and Apache's where Java is at hand."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from tests.client.cluster import (
    DEADLINE_SECONDS,
    QUICK,
    Seen,
    eventually,
    numbered,
    play,
)
from tests.conformance.clusters import Cluster

from reliable_mq.client.administering.groups import GroupChange
from reliable_mq.client.administering.topic_settings import TopicChange
from reliable_mq.client.administering.tracking import Track
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Dead, Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import NotFound, Refused, ReliableMQError, UsageError
from reliable_mq.message import Message, MessageQueue

CLUSTERS = ("bundled", "apache")
pytestmark = pytest.mark.processes

T = TypeVar("T")


async def until(ask: Callable[[], Awaitable[T]], fits: Callable[[T], bool]) -> T:
    """Ask until the answer fits: Apache's broker shows some things a moment later."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not fits(answer := await ask()):
            await asyncio.sleep(0.05)
    return answer


@pytest.fixture(autouse=True, scope="module")
def registered(cluster: Cluster) -> None:
    """Wait for Apache's broker: it says that it has booted ten seconds before it registers."""

    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:

            async def is_known() -> bool:
                try:
                    return bool(await client.admin.topics.route("TBW102"))
                except ReliableMQError:
                    return False

            await until(is_known, bool)

    play(scene())


def test_a_topic_is_made_shown_changed_and_deleted(cluster: Cluster, topic: str) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            topics = client.admin.topics
            (name,) = (await topics.create(topic, 3, attributes={"message.type": "FIFO"})).value
            assert (await topics.create(topic, 3, attributes={"message.type": "FIFO"})).value == []
            assert topic in (await topics.names()).value
            assert "TBW102" not in (await topics.names()).value
            assert "TBW102" in (await topics.names(everything=True)).value
            settings = (await topics.settings(topic)).value[name]
            assert (settings.read_queues, settings.permission) == (3, "rw")
            assert settings.attributes == {"message.type": "FIFO"}
            change = TopicChange(write_queues=5, permission="r", attributes={"message.type": None})
            assert (await topics.update(topic, change)).value == [name]
            (place,) = await topics.route(topic)
            assert (place.read_queues, place.write_queues, place.permission) == (3, 5, "r")
            assert (await topics.settings(topic)).value[name].attributes == {}
            assert (await topics.delete(topic)).value == [name]
            with pytest.raises(NotFound):
                await topics.delete(topic)
            with pytest.raises(ReliableMQError):
                await topics.route(topic)
            with pytest.raises(Refused):
                await topics.delete("TBW102")

    play(scene())


def test_a_group_is_made_shown_changed_and_deleted(cluster: Cluster, group: str) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            groups = client.admin.groups
            (name,) = (await groups.create(group, GroupChange(retries_max=3))).value
            assert (await groups.create(group, GroupChange(retries_max=3))).value == []
            with pytest.raises(UsageError, match="other settings"):
                await groups.create(group, GroupChange(retries_max=4))
            assert (await groups.update(group, GroupChange(may_consume=False))).value == [name]
            settings = (await groups.settings(group)).value[name]
            assert (settings.retries_max, settings.may_consume) == (3, False)
            known = (await groups.all_settings()).value
            assert known[group] == {name: settings}
            assert "TOOLS_CONSUMER" not in known
            assert (await client.admin.offsets.progress(group)).value.queues == []
            assert (await groups.delete(group)).value == [name]
            with pytest.raises(NotFound):
                await groups.settings(group)
            with pytest.raises(NotFound):
                await client.admin.offsets.progress(group)

    play(scene())


def test_members_and_progress_are_told_and_offsets_are_set_while_a_group_is_away(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            admin = client.admin
            (name,) = (await admin.topics.create(topic, 2)).value
            await client.send_many(numbered(topic, 40))
            seen = Seen()
            wanted = Subscription(group=group, topics={topic: "*"}, from_where="first")
            consumer = await client.consume(wanted, seen)
            await eventually(lambda: len(seen.messages) == 40)

            online = await admin.groups.connections(group)
            assert [each.client_id for each in online.value.members] == [client.client_id]
            assert online.value.subscriptions[topic] == "*"
            assert (await admin.topics.consumers(topic)).value == [group]
            with pytest.raises(UsageError, match="stop them first"):
                await admin.groups.delete(group)
            await client.heartbeat()  # it has connected before it sent
            producers = await admin.groups.producers(client.settings.producer_group)
            (senders,) = producers.value.values()
            assert client.client_id in {each.client_id for each in senders}
            await consumer.close()

            progress = (await admin.offsets.progress(group, topic)).value
            assert (progress.lag, sum(row.end for row in progress.queues)) == (0, 40)
            whole = (await admin.offsets.progress(group)).value
            assert {row.queue.topic for row in whole.queues} >= {topic}

            message = await anext(admin.messages.between(topic))
            assert (await admin.messages.tracks(message)).value == [Track(group, "done")]
            start = (await admin.offsets.reset_to_start(group, topic)).value
            assert (await admin.messages.tracks(message)).value == [Track(group, "waits")]
            assert [row.after for row in start] == [0, 0]
            assert sum(row.before for row in start) == 40
            queue = MessageQueue(topic, name, 1)
            assert (await admin.offsets.reset_to_offset(group, queue, 7)).after == 7
            with pytest.raises(UsageError, match="is not in the queue"):
                await admin.offsets.reset_to_offset(group, queue, 99)
            rows = (await admin.offsets.progress(group, topic)).value.queues
            assert [row.committed for row in rows] == [0, 7]

            await admin.groups.create(f"{group}-heir")
            clone = (await admin.offsets.clone(group, f"{group}-heir")).value
            assert [row.after for row in clone] == [0, 7]
            end = (await admin.offsets.reset_to_end(group, topic)).value
            assert sum(row.after for row in end) == 40
            future = datetime.now(UTC) + timedelta(hours=1)
            by_time = (await admin.offsets.reset_to_time(group, topic, future, dry_run=True)).value
            assert [row.after for row in by_time] == [row.after for row in end]

    play(scene())


def test_a_group_that_is_online_is_reset_and_reads_again(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.admin.topics.create(topic, 1)
            seen = Seen()
            wanted = Subscription(group=group, topics={topic: "*"}, from_where="first")
            await client.consume(wanted, seen)
            await client.send_many(numbered(topic, 5))
            await eventually(lambda: len(seen.messages) == 5)
            await client.admin.offsets.reset_to_start(group, topic)
            await client.send(Message(topic=topic, body=b"5"))  # ends a pull that waits at Apache's
            await eventually(lambda: len(seen.messages) >= 11)
            assert {int(body) for body in seen.bodies} == set(range(6))

    play(scene())


def test_messages_are_found_by_every_name_they_have(cluster: Cluster, topic: str) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.admin.topics.create(topic, 1)
            found = client.admin.messages
            before = datetime.now(UTC) - timedelta(seconds=1)
            results = [
                await client.send(Message(topic=topic, body=b"%d" % at, keys=("all", f"k{at}")))
                for at in range(3)
            ]
            one = results[1]
            message = await found.by_offset_id(one.offset_message_id)
            assert (message.message_id, message.body) == (one.message_id, b"1")
            assert message.queue == one.queue
            by_id = await until(
                lambda: found.by_message_id(topic, one.message_id), lambda told: bool(told.value)
            )
            assert [each.body for each in by_id.value] == [b"1"]
            by_key = await until(
                lambda: found.by_key(topic, "all", since=before), lambda told: len(told.value) == 3
            )
            assert [each.body for each in by_key.value] == [b"0", b"1", b"2"]
            assert (await found.by_key(topic, "all", until=before)).value == []
            assert (await found.tracks(message)).value == []
            at = await found.at(one.queue, one.queue_offset, 5)
            assert [each.body for each in at] == [b"1", b"2"]
            assert [each.body async for each in found.between(topic, before)] == [b"0", b"1", b"2"]
            assert [each async for each in found.between(topic, None, before)] == []
            gone = one.offset_message_id[:-8] + "7FFFFFFF"
            with pytest.raises(NotFound):
                await found.by_offset_id(gone)

    play(scene())


def test_the_synchronous_face_does_the_same_and_sends_a_dead_letter_again(
    cluster: Cluster, topic: str, group: str
) -> None:
    with Client(cluster.name_server_address, settings=QUICK) as client:
        admin = client.admin
        (name,) = admin.topics.create(topic, 1).value
        seen = Seen(Dead("cannot be read"))
        wanted = Subscription(group=group, topics={topic: "*"}, from_where="first")
        client.consume(wanted, seen)
        client.send(Message(topic=topic, body=b"poison"))

        async def letters() -> list[bytes]:
            try:
                listed = await asyncio.to_thread(lambda: list(admin.dead_letters.of_group(group)))
            except ReliableMQError:  # there is no dead-letter topic yet
                return []
            return [each.body for each in listed]

        asyncio.run(until(letters, lambda bodies: bodies == [b"poison"]))
        assert group in admin.dead_letters.groups()
        (letter,) = admin.dead_letters.of_group(group)
        admin.dead_letters.send_again(group, letter)
        asyncio.run(eventually(lambda: seen.bodies == [b"poison", b"poison"]))
        assert admin.topics.status(topic).value.queues[0].end == 1
        assert list(admin.topics.settings(topic).value) == [name]
        assert [each.body for each in admin.messages.between(topic)] == [b"poison"]
    with pytest.raises(UsageError, match="not started"):
        admin.topics.names()
