"""What else can be sent, at real brokers: timed, compressed, in batches, and answered."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.client.cluster import QUICK, KeyOrder, Seen, play
from tests.conformance.clusters import Cluster
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import Refused, RemoteError, ReplyTimeout
from reliable_mq.message import CheckBack, Decision, Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.wire.compression import KINDS

pytestmark = pytest.mark.processes


LONG = b"a long body " * 10_000


async def unknown(check: CheckBack) -> Decision:
    return Decision.UNKNOWN


def test_timed_messages_come_in_time_and_one_that_is_taken_back_never_comes(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 1)
            seen = Seen()
            await client.consume(Subscription(group=group, topics={topic: "*"}), seen)
            begun_ms = time.time() * 1000
            at = datetime.now(UTC) + timedelta(seconds=1.2)
            late = timedelta(seconds=2.5)
            passed = await client.send(
                Message(topic=topic, body=b"passed", deliver_at=at - timedelta(hours=1))
            )
            await client.send(Message(topic=topic, body=b"at", deliver_at=at))
            await client.send_oneway(
                Message(topic=topic, body=b"after", delay=timedelta(seconds=1))
            )
            gone = await client.send(Message(topic=topic, body=b"gone", delay=late))
            last = (await client.send_many([Message(topic=topic, body=b"last", delay=late)]))[0]
            assert passed.recall_handle == ""
            assert not isinstance(last, Exception)
            assert await client.recall(gone.recall_handle) == gone.message_id
            await eventually(lambda: b"last" in seen.bodies)
            assert sorted(seen.bodies) == [b"after", b"at", b"last", b"passed"]
            stored = {message.body: message.store_time_ms for message in seen.messages}
            assert stored[b"at"] >= at.timestamp() * 1000 - 1
            assert stored[b"after"] >= begun_ms + 1000
            assert stored[b"last"] >= begun_ms + 2500
            with pytest.raises(Refused):  # too late
                await client.recall(last.recall_handle)
            with pytest.raises(RemoteError, match="delay time should not be bigger"):
                await client.send(Message(topic=topic, body=b"far", delay=timedelta(days=4)))

    play(scene())


def test_bodies_compressed_by_every_kind_are_read_also_those_of_halves_and_many(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        names = cluster.name_server_address
        async with AsyncClient(names, settings=QUICK) as reader:
            await reader.create_topic(topic, 2)
            seen = Seen()
            await reader.consume(Subscription(group=group, topics={topic: "*"}), seen)
            for kind in KINDS:
                settings = msgspec.structs.replace(QUICK, compression=kind)
                async with AsyncClient(names, settings=settings) as client:
                    body = kind.encode() + LONG
                    await client.send(Message(topic=topic, body=b"1" + body))
                    await client.send_oneway(Message(topic=topic, body=b"2" + body))
                    many = [Message(topic=topic, body=each + body) for each in (b"3", b"4")]
                    await client.send_many([*many, Message(topic=topic, body=b"5" + kind.encode())])
                    await client.transactions.join(f"of-{group}", unknown)
                    half = await client.transactions.send(
                        Message(topic=topic, body=b"6" + body), f"of-{group}"
                    )
                    await client.transactions.end(half, Decision.COMMIT)
            await eventually(lambda: len(seen.messages) == 6 * len(KINDS))
            expected = [
                b"%d" % at + kind.encode() + (LONG if at != 5 else b"")
                for kind in KINDS
                for at in range(1, 7)
            ]
            assert sorted(seen.bodies) == sorted(expected)

    play(scene())


def test_a_batcher_of_threads_keeps_the_order_of_every_key(
    cluster: Cluster, topic: str, group: str
) -> None:
    names = cluster.name_server_address

    async def scene() -> None:
        async with AsyncClient(names, settings=QUICK) as reader:
            await reader.create_topic(topic, 4)
            handler = KeyOrder()
            await reader.consume(Subscription(group=group, topics={topic: "*"}), handler)
            await asyncio.to_thread(send)
            await eventually(lambda: handler.count >= 400)
            assert handler.count == 400
            assert all(numbers == sorted(numbers) for numbers in handler.seen.values())

    def send() -> None:
        with Client(names, settings=QUICK) as client, client.batcher(count=20) as batcher:

            def one_key(key: int) -> None:
                for at in range(100):
                    batcher.put(Message(topic=topic, body=b"%d" % at, ordering_key=f"key-{key}"))

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(one_key, range(4)))

    play(scene())


def test_one_client_answers_what_another_one_asks(cluster: Cluster, topic: str, group: str) -> None:
    names = cluster.name_server_address

    async def scene() -> None:
        async with (
            AsyncClient(
                names, settings=msgspec.structs.replace(QUICK, compression="zlib")
            ) as asker,
            AsyncClient(names, settings=QUICK) as responder,
        ):
            await asker.create_topic(topic, 2)

            async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
                (message,) = messages
                if message.body != b"silent":
                    answer = b"re: " + message.body
                    await responder.reply(message, answer, tag="ok", properties={"who": "me"})
                return [CONSUMED]

            await responder.consume(
                Subscription(group=group, topics={topic: "*"}, from_where="first"), handle
            )
            bodies = [b"one", b"two", LONG]
            replies = await asyncio.gather(
                *(asker.request(Message(topic=topic, body=body), timeout=20.0) for body in bodies)
            )
            assert [answer.body for answer in replies] == [b"re: " + body for body in bodies]
            assert {(each.tag, each.properties["who"]) for each in replies} == {("ok", "me")}
            with pytest.raises(ReplyTimeout):
                await asker.request(Message(topic=topic, body=b"silent"), timeout=0.5)
            await asyncio.to_thread(ask_from_a_thread)

    def ask_from_a_thread() -> None:
        with Client(names, settings=QUICK) as client:
            answer = client.request(Message(topic=topic, body=b"sync"), timeout=20.0)
            assert answer.body == b"re: sync"

    play(scene())


def test_a_handler_in_a_thread_answers_and_is_told_that_nobody_waits_any_more(
    cluster: Cluster, topic: str, group: str
) -> None:
    names = cluster.name_server_address
    lost: list[Exception] = []

    def scene() -> None:
        with Client(names, settings=QUICK) as client:
            client.create_topic(topic, 1)

            def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
                (message,) = messages
                client.reply(message, b"re")
                gone = {**message.properties, "REPLY_TO_CLIENT": "nobody"}
                try:
                    client.reply(msgspec.structs.replace(message, properties=gone), b"re")
                except RemoteError as error:
                    lost.append(error)
                return [CONSUMED]

            client.consume(
                Subscription(group=group, topics={topic: "*"}, from_where="first"), handle
            )
            assert client.request(Message(topic=topic, body=b"?"), timeout=20.0).body == b"re"

    scene()
    assert "nobody" in str(lost[0])
