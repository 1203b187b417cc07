"""Administration against real clusters of every kind: what is made and set is so at all masters."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec
import pytest
from tests.client.cluster import (
    QUICK,
    Seen,
    numbered,
    play,
)
from tests.conformance.clusters import Cluster
from tests.waiting import eventually

from reliable_mq.client.administering.groups import GroupChange
from reliable_mq.client.administering.topic_settings import TopicChange
from reliable_mq.client.administering.tracking import Track
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import NotFound, Refused, ReliableMQError, UsageError
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import Reject

pytestmark = pytest.mark.processes

T = TypeVar("T")


async def answer(ask: Callable[[], Awaitable[T]], fits: Callable[[T], bool]) -> T:
    """Ask until the answer fits: Apache's broker shows some things a moment later."""
    answers: list[T] = []

    async def has_come() -> bool:
        answers[:] = [await ask()]
        return fits(answers[0])

    await eventually(has_come, lambda: answers)
    return answers[0]


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

            await answer(is_known, bool)

    play(scene())


def test_a_topic_is_made_shown_changed_and_deleted(cluster: Cluster, topic: str) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            topics = client.admin.topics
            names = (await topics.create(topic, 3, attributes={"message.type": "FIFO"})).value
            assert names
            assert (await topics.create(topic, 3, attributes={"message.type": "FIFO"})).value == []
            assert topic in (await topics.names()).value
            assert "TBW102" not in (await topics.names()).value
            assert "TBW102" in (await topics.names(everything=True)).value
            settings = (await topics.settings(topic)).value
            assert list(settings) == names
            for each in settings.values():
                assert (each.read_queues, each.permission) == (3, "rw")
                assert each.attributes == {"message.type": "FIFO"}
            change = TopicChange(write_queues=5, permission="r", attributes={"message.type": None})
            assert (await topics.update(topic, change)).value == names
            places = await topics.route(topic)
            assert [place.broker for place in places] == names
            for place in places:
                assert (place.read_queues, place.write_queues, place.permission) == (3, 5, "r")
            changed = (await topics.settings(topic)).value
            assert [each.attributes for each in changed.values()] == [{}] * len(names)
            assert (await topics.delete(topic)).value == names
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
            names = (await groups.create(group, GroupChange(retries_max=3))).value
            assert names
            assert (await groups.create(group, GroupChange(retries_max=3))).value == []
            with pytest.raises(UsageError, match="other settings"):
                await groups.create(group, GroupChange(retries_max=4))
            assert (await groups.update(group, GroupChange(may_consume=False))).value == names
            settings = (await groups.settings(group)).value
            assert list(settings) == names
            for each in settings.values():
                assert (each.retries_max, each.may_consume) == (3, False)
            known = (await groups.all_settings()).value
            assert known[group] == settings
            assert "TOOLS_CONSUMER" not in known
            assert (await client.admin.offsets.progress(group)).value.queues == []
            assert (await groups.delete(group)).value == names
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
            names = (await admin.topics.create(topic, 2)).value
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
            await client._engine.heartbeat()  # it has connected before it sent
            producers = await admin.groups.producers(client._engine.settings.producer_group)
            (senders,) = producers.value.values()
            assert client.client_id in {each.client_id for each in senders}
            (state,) = (await admin.groups.members(group)).value
            assert state.client_id == client.client_id
            held = {row.queue for row in state.queues if row.queue.topic == topic}
            assert held == set((await client.topic_route(topic)).readable)
            await consumer.close()

            progress = (await admin.offsets.progress(group, topic)).value
            assert (progress.lag, sum(row.end for row in progress.queues)) == (0, 40)
            whole = (await admin.offsets.progress(group)).value
            assert {row.queue.topic for row in whole.queues} >= {topic}

            message = await anext(admin.messages.between(topic))
            assert (await admin.messages.tracks(message)).value == [Track(group, "done")]
            start = (await admin.offsets.reset_to_start(group, topic)).value
            assert (await admin.messages.tracks(message)).value == [Track(group, "waits")]
            assert [row.after for row in start] == [0, 0] * len(names)
            assert sum(row.before for row in start) == 40
            queue = max(start, key=lambda row: row.before).queue
            assert (await admin.offsets.reset_to_offset(group, queue, 7)).after == 7
            with pytest.raises(UsageError, match="is not in the queue"):
                await admin.offsets.reset_to_offset(group, queue, 99)
            rows = (await admin.offsets.progress(group, topic)).value.queues
            assert {row.queue: row.committed for row in rows if row.committed} == {queue: 7}

            await admin.groups.create(f"{group}-heir")
            clone = (await admin.offsets.clone(group, f"{group}-heir")).value
            assert [row.after for row in clone] == [row.committed for row in rows]
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
            queues = (await client.topic_route(topic)).writable
            for queue in queues:  # at Apache's a reset is told with the answer to a pull that waits
                await client.send(Message(topic=topic, body=b"5"), queue=queue)
            await eventually(lambda: len(seen.messages) >= 10 + len(queues))
            assert Counter(seen.bodies) >= Counter({b"%d" % at: 2 for at in range(5)})

    play(scene())


def test_messages_are_found_by_every_name_they_have(cluster: Cluster, topic: str) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.admin.topics.create(topic, 1)
            found = client.admin.messages
            before = datetime.now(UTC) - timedelta(seconds=1)
            queue, results = None, []
            for at in range(3):
                message = Message(topic=topic, body=b"%d" % at, keys=("all", f"k{at}"))
                results.append(await client.send(message, queue=queue))
                queue = results[0].queue
            one = results[1]
            stored = await found.by_offset_id(one.offset_message_id)
            assert (stored.message_id, stored.body) == (one.message_id, b"1")
            assert stored.queue == one.queue
            by_id = await answer(
                lambda: found.by_message_id(topic, one.message_id), lambda told: bool(told.value)
            )
            assert [each.body for each in by_id.value] == [b"1"]
            by_key = await answer(
                lambda: found.by_key(topic, "all", since=before), lambda told: len(told.value) == 3
            )
            assert [each.body for each in by_key.value] == [b"0", b"1", b"2"]
            assert (await found.by_key(topic, "all", until=before)).value == []
            assert (await found.tracks(stored)).value == []
            there = await found.at(one.queue, one.queue_offset, 5)
            assert [each.body for each in there] == [b"1", b"2"]
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
        names = admin.topics.create(topic, 1).value
        seen = Seen(Reject("cannot be read"))
        wanted = Subscription(group=group, topics={topic: "*"}, from_where="first")
        client.consume(wanted, seen)
        client.send(Message(topic=topic, body=b"poison"))

        async def letters() -> list[bytes]:
            try:
                listed = await asyncio.to_thread(lambda: list(admin.dead_letters.of_group(group)))
            except ReliableMQError:  # there is no dead-letter topic yet
                return []
            return [each.body for each in listed]

        asyncio.run(answer(letters, lambda bodies: bodies == [b"poison"]))
        assert group in admin.dead_letters.groups()
        (letter,) = admin.dead_letters.of_group(group)
        admin.dead_letters.send_again(group, letter)
        asyncio.run(eventually(lambda: seen.bodies == [b"poison", b"poison"]))
        assert sum(row.end for row in admin.topics.status(topic).value.queues) == 1
        assert list(admin.topics.settings(topic).value) == names
        assert [each.body for each in admin.messages.between(topic)] == [b"poison"]
    with pytest.raises(UsageError, match="this client is closed"):
        admin.topics.names()


def test_an_application_with_a_namespace_looks_after_its_own_names(
    cluster: Cluster, topic: str, group: str
) -> None:
    settings = msgspec.structs.replace(QUICK, namespace="shop")

    async def scene() -> None:
        async with (
            AsyncClient(cluster.name_server_address, settings=QUICK) as outside,
            AsyncClient(cluster.name_server_address, settings=settings) as client,
        ):
            admin = client.admin
            await outside.admin.topics.create(f"{topic}-of-others", 1)
            await admin.topics.create(topic, 1)
            assert topic in (await admin.topics.names()).value
            assert f"{topic}-of-others" not in (await admin.topics.names()).value
            assert f"shop%{topic}" in (await outside.admin.topics.names()).value
            seen = Seen(Reject("cannot be read"))
            wanted = Subscription(group=group, topics={topic: "*"}, from_where="first")
            consumer = await client.consume(wanted, seen)
            sent = await client.send(Message(topic=topic, body=b"poison"))
            await eventually(lambda: len(seen.messages) == 1)

            assert topic in (await admin.groups.connections(group)).value.subscriptions
            assert group in (await admin.groups.all_settings()).value
            assert (await admin.topics.consumers(topic)).value == [group]
            message = await admin.messages.by_offset_id(sent.offset_message_id)
            assert (message.topic, message.queue) == (topic, sent.queue)
            assert [each.group for each in (await admin.messages.tracks(message)).value] == [group]
            await answer(admin.dead_letters.groups, lambda groups: group in groups)
            (letter,) = await answer(lambda: listed(client, group), lambda found: len(found) == 1)
            await admin.dead_letters.send_again(group, letter)
            await eventually(lambda: len(seen.messages) == 2)
            await consumer.close()
            rows = (await admin.offsets.reset_to_end(group, topic)).value
            assert {row.queue.topic for row in rows} == {topic}
            assert (await admin.topics.delete(topic)).value
            assert f"shop%{topic}" not in (await outside.admin.topics.names()).value

    play(scene())


async def listed(client: AsyncClient, group: str) -> list[ReceivedMessage]:
    try:
        return [each async for each in client.admin.dead_letters.of_group(group)]
    except ReliableMQError:  # the name servers do not tell of it yet
        return []
