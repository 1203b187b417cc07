"""The client sends and consumes: one suite over every kind of cluster, as one code serves all."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import pytest
from tests.client.cluster import (
    QUICK,
    KeyOrder,
    Seen,
    in_topic,
    numbered,
    play,
)
from tests.conformance.clusters import Cluster
from tests.waiting import SECONDS_MAX, eventually, until

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.message import (
    CheckBack,
    Decision,
    Message,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from reliable_mq.outcomes import CONSUMED, Outcome, Reject, Retry

pytestmark = pytest.mark.processes

PRODUCERS = "half-producers"


def test_whatever_way_a_message_is_sent_it_arrives_once_and_is_committed(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 4)
            result = await client.send(Message(topic=topic, body=b"one", keys=("k",)))
            assert result.status is SendStatus.SEND_OK
            await client.send_oneway(Message(topic=topic, body=b"way"))
            await client.send_batch([Message(topic=topic, body=b"batch%d" % at) for at in range(3)])
            many = await client.send_many(numbered(topic, 500, keys=7))
            assert all(isinstance(one, SendResult) for one in many)
            seen = Seen()
            consumer = await client.consume(Subscription(group=group, topics={topic: "*"}), seen)
            await eventually(lambda: len(seen.messages) >= 505)
            await consumer.close()
            expected = [b"one", b"way", b"batch0", b"batch1", b"batch2"]
            expected += [b"%d" % at for at in range(500)]
            assert sorted(seen.bodies) == sorted(expected)
            progress = await client.consumer_progress(group, topic)
            assert all(committed == maximum for committed, maximum in progress.values())
            assert sum(maximum for _, maximum in progress.values()) == 505

    play(scene())


def test_the_place_that_send_names_is_the_place_where_the_message_is_read(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            sent = [await client.send(Message(topic=topic, body=b"single"))]
            many = await client.send_many(numbered(topic, 100))
            sent += [one for one in many if isinstance(one, SendResult)]
            seen = Seen()
            await client.consume(Subscription(group=group, topics={topic: "*"}), seen)
            await eventually(lambda: len(seen.messages) == 101)
            read = {
                m.message_id: (m.queue, m.queue_offset, m.offset_message_id) for m in seen.messages
            }
            assert {
                one.message_id: (one.queue, one.queue_offset, one.offset_message_id) for one in sent
            } == read

    play(scene())


def test_a_topic_that_its_first_message_creates_is_found_by_a_consumer_that_waits(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            seen = Seen()
            await client.consume(Subscription(group=group, topics={topic: "*"}), seen)
            await client.send(Message(topic=topic, body=b"first"))
            await eventually(lambda: seen.bodies == [b"first"])

    play(scene())


def test_only_the_tags_that_were_asked_for_arrive(cluster: Cluster, topic: str, group: str) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            seen = Seen()
            subscription = Subscription(group=group, topics={topic: "paid || refunded"})
            await client.consume(subscription, seen)
            for tag in ("paid", "opened", "refunded", "", "paid"):
                await client.send(Message(topic=topic, body=tag.encode() or b"none", tag=tag))
            await eventually(lambda: len(seen.messages) == 3)
            assert sorted(seen.bodies) == [b"paid", b"paid", b"refunded"]

    play(scene())


def test_a_message_that_fails_comes_back_by_the_retry_topic(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            sent = await client.send(Message(topic=topic, body=b"again", tag="t", keys=("k",)))
            seen = Seen(Retry(after=1))
            await client.consume(Subscription(group=group, topics={topic: "*"}), seen)
            await eventually(lambda: len(seen.messages) == 2)
            first, second = seen.messages
            assert (first.reconsume_times, second.reconsume_times) == (0, 1)
            assert second.queue.topic == f"%RETRY%{group}"
            assert (second.topic, second.tag, second.keys) == (topic, "t", ("k",))
            assert first.message_id == second.message_id == sent.message_id

    play(scene())


def test_a_dead_letter_can_be_read_with_its_reason(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            sent = await client.send(Message(topic=topic, body=b"broken", ordering_key="k"))
            await client.send(Message(topic=topic, body=b"next", ordering_key="k"))
            seen = Seen(Reject("it does not validate"))
            await client.consume(Subscription(group=group, topics={topic: "*"}), seen)
            await eventually(lambda: seen.bodies == [b"broken", b"next"])
            letters = Seen()
            dead = Subscription(group=f"{group}-dead", topics={f"%DLQ%{group}": "*"})
            await client.consume(dead, letters)
            await eventually(lambda: len(letters.messages) == 1)
            (letter,) = letters.messages
            assert letter.body == b"broken"
            assert letter.message_id == sent.message_id
            assert letter.properties["DEAD_LETTER_REASON"] == "it does not validate"
            assert letter.properties["RETRY_TOPIC"] == topic

    play(scene())


def test_a_failing_key_waits_while_the_other_keys_go_on_and_then_keeps_its_order(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 30, keys=3))
            order: list[bytes] = []
            failures = 0

            async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
                nonlocal failures
                (message,) = messages
                if message.ordering_key == "key-0" and failures < 3:
                    failures += 1
                    return [Retry(after=0.3)]
                order.append(message.body)
                return [CONSUMED]

            await client.consume(Subscription(group=group, topics={topic: "*"}), handle)
            await eventually(lambda: len(order) == 30)
            slow = [body for body in order if int(body) % 3 == 0]
            assert slow == [b"%d" % at for at in range(0, 30, 3)]
            assert order[-10:] == slow, "the other keys did not wait"

    play(scene())


def test_order_is_kept_while_members_come_and_go(cluster: Cluster, topic: str, group: str) -> None:
    """Two clients in one loop, so that one handler sees everything that runs."""

    async def scene() -> None:
        names = cluster.name_server_address
        handler = KeyOrder()
        subscription = Subscription(group=group, topics={topic: "*"})
        async with (
            AsyncClient(names, settings=QUICK) as producer,
            AsyncClient(names, settings=QUICK) as first,
            AsyncClient(names, settings=QUICK) as second,
        ):
            await producer.create_topic(topic, 4)
            stays = await first.consume(subscription, handler)
            batch = numbered(topic, 3000, keys=50)
            for at in range(0, 1000, 100):
                await producer.send_many(batch[at : at + 100])
            guest = await second.consume(subscription, handler)
            half = 2 * len(cluster.masters)
            at_once = iter(range(1000, 2000, 20))

            async def guest_has_half() -> bool:
                """Look while messages come."""
                for at in islice(at_once, 1):
                    await producer.send_many(batch[at : at + 20])
                return len(in_topic(guest, topic)) == half

            await eventually(guest_has_half)
            for at in at_once:
                await producer.send_many(batch[at : at + 20])
            assert len(in_topic(stays, topic)) == half
            await guest.close()
            for at in range(2000, 3000, 100):
                await producer.send_many(batch[at : at + 100])
            await eventually(lambda: handler.count >= 3000)
            await eventually(lambda: len(in_topic(stays, topic)) == 2 * half)
        assert handler.overlaps == []
        for key, numbers in handler.seen.items():
            own = int(key.removeprefix("key-"))
            assert numbers == list(range(own, 3000, 50)), "each once and in order"

    play(scene())


def test_a_group_that_begins_at_the_end_gets_what_is_sent_from_then_on(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 10))
            seen = Seen()
            subscription = Subscription(group=group, topics={topic: "*"}, from_where="last")
            consumer = await client.consume(subscription, seen)
            await eventually(lambda: len(in_topic(consumer, topic)) == len(cluster.masters))
            sent = await client.send(Message(topic=topic, body=b"new"))
            await eventually(lambda: b"new" in seen.bodies)
            # A broker calls a queue young whose first message is still in memory, and then lets
            # every new group begin at 0 (facts of QUERY_CONSUMER_OFFSET): nothing is skipped.
            of_queue = [each.queue_offset for each in seen.messages if each.queue == sent.queue]
            assert of_queue in ([sent.queue_offset], list(range(sent.queue_offset + 1)))

    play(scene())


def test_batches_of_a_handler_never_hold_two_messages_of_one_key(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            await client.send_many(numbered(topic, 400, keys=20))
            calls: list[Sequence[ReceivedMessage]] = []

            async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
                calls.append(messages)
                return [CONSUMED] * len(messages)

            subscription = Subscription(group=group, topics={topic: "*"}, batch=16)
            await client.consume(subscription, handle)
            await eventually(lambda: sum(map(len, calls)) == 400)
            assert max(map(len, calls)) > 1
            for messages in calls:
                keys = [message.ordering_key for message in messages]
                assert len(keys) == len(set(keys)) <= 16

    play(scene())


def test_a_client_consumes_for_a_group_once(cluster: Cluster, topic: str, group: str) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            subscription = Subscription(group=group, topics={topic: "*"})
            consumer = await client.consume(subscription, Seen())
            with pytest.raises(UsageError, match="already"):
                await client.consume(subscription, Seen())
            await consumer.close()
            await client.consume(subscription, Seen())

    play(scene())


def test_the_synchronous_face_sends_and_consumes(cluster: Cluster, topic: str, group: str) -> None:
    with Client(cluster.name_server_address, settings=QUICK) as client:
        client.create_topic(topic, 2)
        seen: list[bytes] = []

        def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            seen.extend(message.body for message in messages)
            return [CONSUMED] * len(messages)

        consumer = client.consume(Subscription(group=group, topics={topic: "*"}), handle)
        client.send(Message(topic=topic, body=b"one"))
        client.send_oneway(Message(topic=topic, body=b"two"))
        client.send_batch([Message(topic=topic, body=b"three")])
        sending = client.send_async(Message(topic=topic, body=b"four"))
        assert sending.result(SECONDS_MAX).queue_offset >= 0
        client.send_many([Message(topic=topic, body=b"five")])
        until(lambda: len(seen) == 5)
        assert sorted(seen) == [b"five", b"four", b"one", b"three", b"two"]
        assert {queue.topic for queue in consumer.queues} >= {topic}
        assert len(client.topic_route(topic).writable) == 2 * len(cluster.masters)
        consumer.close()
        progress = client.consumer_progress(group, topic)
        assert sum(committed for committed, _ in progress.values()) == 5


async def unknown(check: CheckBack) -> Decision:
    return Decision.UNKNOWN


def test_what_is_committed_arrives_and_what_is_rolled_back_does_not(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            seen = Seen()
            await client.consume(
                Subscription(group=group, topics={topic: "*"}, from_where="first"), seen
            )
            await client.transactions.join(PRODUCERS, unknown)
            kept, gone, many, more = [
                await client.transactions.send(Message(topic=topic, body=body), PRODUCERS)
                for body in (b"kept", b"gone", b"many", b"more")
            ]
            await client.transactions.end(gone, Decision.ROLLBACK)
            await client.transactions.end(kept, Decision.COMMIT)
            results = await client.transactions.commit_many([many, more])
            assert not [result for result in results if isinstance(result, Exception)]
            await eventually(lambda: len(seen.messages) >= 3)

            assert sorted(seen.bodies) == [b"kept", b"many", b"more"]
            halves = {half.message_id: half for half in (kept, many, more)}
            for message in seen.messages:
                assert message.queue == halves[message.message_id].queue
            said = {result.message_id: result.queue_offset for result in results}  # type: ignore[union-attr]
            ends = Counter(message.queue for message in seen.messages)
            for message in seen.messages:
                offset = said.get(message.message_id, ends[message.queue] - 1)
                assert offset < ends[message.queue]
                if cluster.follows_at_once:
                    assert message.queue_offset <= offset

    play(scene())


def test_a_half_of_a_group_that_nobody_answers_for_is_not_sent(
    cluster: Cluster, topic: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            with pytest.raises(UsageError, match="join"):
                await client.transactions.send(Message(topic=topic, body=b"x"), "nobody")
            await client.transactions.join(PRODUCERS, unknown)
            with pytest.raises(MessageRefused):
                await client.transactions.send(
                    Message(topic=topic, body=b"x", delay_level=1), PRODUCERS
                )

    play(scene())
