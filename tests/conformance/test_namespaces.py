"""Several tenants of one cluster, each with names of its own."""

import msgspec
import pytest
from tests.client.cluster import QUICK, Seen, play
from tests.conformance.clusters import Cluster
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import NoRoute
from reliable_mq.message import (
    CheckBack,
    Decision,
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
)
from reliable_mq.outcomes import Reject, Retry

CLUSTERS = ("bundled", "apache")

pytestmark = pytest.mark.processes


def client_in(cluster: Cluster, namespace: str) -> AsyncClient:
    settings = msgspec.structs.replace(QUICK, namespace=namespace)
    return AsyncClient(cluster.name_server_address, settings=settings)


def test_two_tenants_of_one_cluster_never_meet(cluster: Cluster, topic: str, group: str) -> None:
    async def scene() -> None:
        async with (
            client_in(cluster, "shop") as shop,
            client_in(cluster, "bank") as bank,
            client_in(cluster, "") as anybody,
        ):
            for client in (shop, bank):
                await client.create_topic(topic, 2)
            at_shop, at_bank = Seen(), Seen()
            subscription = Subscription(group=group, topics={topic: "*"})
            consumer = await shop.consume(subscription, at_shop)
            await bank.consume(subscription, at_bank)
            sent = await shop.send(Message(topic=topic, body=b"shop's"))
            (many,) = await bank.send_many([Message(topic=topic, body=b"bank's")])
            assert isinstance(many, SendResult)
            await eventually(
                lambda: at_shop.bodies == [b"shop's"] and at_bank.bodies == [b"bank's"]
            )

            (message,) = at_shop.messages
            assert message.topic == message.queue.topic == sent.queue.topic == many.queue.topic
            assert message.topic == topic
            assert topic in {queue.topic for queue in consumer.queues}
            assert (await shop.topic_route(topic)).topic == topic
            progress = await shop.consumer_progress(group, topic)
            assert sum(maximum for _, maximum in progress.values()) == 1
            readable = (await shop.topic_route(topic)).readable
            assert set(progress) == set(readable)
            assert message.queue in consumer.lag()
            consumer.pause(readable)
            await shop.send(Message(topic=topic, body=b"later"))
            consumer.resume(readable)
            await eventually(lambda: b"later" in at_shop.bodies)
            with pytest.raises(NoRoute):
                await anybody.topic_route(topic)
            assert (await anybody.topic_route(f"shop%{topic}")).writable

    play(scene())


def test_what_fails_stays_in_the_namespace_until_its_dead_letter(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with client_in(cluster, "shop") as shop, client_in(cluster, "") as anybody:
            await shop.create_topic(topic, 1)
            seen = Seen(Retry(after=1), Reject("for good"))
            await shop.consume(Subscription(group=group, topics={topic: "*"}, ordered=False), seen)
            await shop.send(Message(topic=topic, body=b"x"))
            await eventually(lambda: len(seen.messages) == 2)
            assert [message.topic for message in seen.messages] == [topic, topic]
            assert seen.messages[1].queue.topic == f"%RETRY%{group}"
            letters = Seen()
            dead = f"%DLQ%shop%{group}"
            await anybody.consume(Subscription(group=f"{group}-dlq", topics={dead: "*"}), letters)
            await eventually(lambda: letters.bodies == [b"x"])

    play(scene())


def test_who_asks_for_messages_meets_own_names_only(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        told: list[MessageQueue] = []
        async with client_in(cluster, "shop") as shop:
            await shop.create_topic(topic, 1)
            queue = MessageQueue(topic, (await shop.topic_route(topic)).readable[0].broker_name, 0)
            await shop.send(Message(topic=topic, body=b"x"))
            async with shop.pull_consumer(group) as puller:
                await puller.subscribe({topic: "*"}, on_assigned=told.extend)
                messages: list[ReceivedMessage] = []
                while not messages:
                    messages = await puller.poll(1.0)
                assert [(each.topic, each.queue) for each in messages] == [(topic, queue)]
                assert (told, puller.queues) == ([queue], {queue})
                await puller.commit({queue: 1})
                assert await puller.committed() == {queue: 1}
                assert await puller.lag() == {queue: 0}
                await puller.pause(queue)
                assert puller.paused == {queue}
                await puller.resume()
                await puller.seek_to_begin(queue)
                assert await puller.position(queue) == 0
            async with shop.pull_consumer(f"{group}-hand") as by_hand:
                await by_hand.assign([queue])
                assert await by_hand.end_offsets() == {queue: 1}
            wanted = Subscription(group=f"{group}-simple", topics={topic: "*"}, ordered=False)
            simple = await shop.simple_consumer(wanted)
            first: list[ReceivedMessage] = []
            second: list[ReceivedMessage] = []
            while not first:
                first = await simple.receive(timeout=1.0)
            await simple.retry(first[0], after=1.0)
            while not second:
                second = await simple.receive(timeout=1.0)
            assert [(each.topic, each.body) for each in (*first, *second)] == [(topic, b"x")] * 2
            assert second[0].queue.topic == f"%RETRY%{group}-simple"
            await simple.ack(*second)
            await simple.close()

    play(scene())


def test_a_half_message_is_of_the_namespace_and_so_is_the_question_for_it(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with client_in(cluster, "shop") as shop:
            await shop.create_topic(topic, 1)

            async def unknown(check: CheckBack) -> Decision:
                return Decision.UNKNOWN

            await shop.transactions.join("makers", unknown)
            assert shop.transactions.groups == ["makers"]
            half = await shop.transactions.send(Message(topic=topic, body=b"half"), "makers")
            assert half.group == "shop%makers"
            await shop.transactions.end(half, Decision.COMMIT)
            seen = Seen()
            await shop.consume(Subscription(group=group, topics={topic: "*"}), seen)
            await eventually(lambda: seen.bodies == [b"half"])

    play(scene())
