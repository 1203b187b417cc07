"""Store directories of real brokers, read while they run: the bundled one's, and Apache's."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.cluster import PATIENT, play
from tests.reconcile import plain_scan
from tests.waiting import eventually, pending
from tests.with_java import started

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import CheckBack, Decision, Message, ReceivedMessage, SendResult
from reliable_mq.outcomes import CONSUMED, Outcome, Reject
from reliable_mq.reconcile.brokers.file_queues import read_progress
from reliable_mq.reconcile.brokers.file_store import read_batches, read_layout
from reliable_mq.reconcile.brokers.log_roles import DELAY_TOPICS
from reliable_mq.reconcile.brokers.log_scan import LogRow
from reliable_mq.reconcile.brokers.log_schema import BROKER, RECORD_SCHEMA, STORED_SCHEMA
from reliable_mq.reconcile.brokers.spark_cluster import read_cluster
from reliable_mq.reconcile.brokers.spark_topic_source import read_pulls
from reliable_mq.reconcile.brokers.topic_pulls import may_have_messages
from reliable_mq.wire.record import body_checksum

pytestmark = pytest.mark.processes

COUNT, LOAD = 300, 2000
TOPIC, GROUP = "orders", "payments"


@pytest.fixture(
    params=["bundled", pytest.param("apache", marks=[pytest.mark.java, pytest.mark.interop])]
)
def broker(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """Give a running broker's name server and store directory."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        if request.param == "bundled":
            with ReliableMQBroker(directory) as bundled:
                yield bundled.name_server_address, bundled.store
            return
        with started(ApacheRocketMQ(directory, "ASYNC_FLUSH")) as apache:
            yield apache.name_server_address, directory / "store"


def rows_of(store: Path) -> list[LogRow]:
    return [
        row
        for partition in read_layout(str(store), split_size=16 * 1024 * 1024).partitions
        for row in plain_scan.rows_of(partition, check_body=True)
    ]


def test_the_ledger_of_a_running_broker_holds_what_was_sent_and_given_up(
    broker: tuple[str, Path],
) -> None:
    """Given messages sent, one of them given up by its consumer, when the files of the running
    broker are read, then they say where each lies, what it holds, and what became of it."""
    name_servers, store = broker
    handled: list[str] = []

    async def handler(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        handled.extend(message.message_id for message in messages)
        return [Reject("no such card") if m.body == b"7" else CONSUMED for m in messages]

    async def scene() -> None:
        async with AsyncClient(name_servers, settings=PATIENT) as client:
            await registered(client)
            await client.create_topic(TOPIC, 4)
            bodies = {b"%d" % number for number in range(COUNT)}
            messages = [Message(topic=TOPIC, body=body, tag="paid") for body in bodies]
            sent = [one for one in await client.send_many(messages) if isinstance(one, SendResult)]
            assert len(sent) == COUNT
            gone, half = await halves(client)
            bodies.add(b"kept")
            soon = str(int(time.time() * 1000) + 3_600_000)
            await client.send(Message(topic=TOPIC, body=b"in two hours", delay_level=18))
            await client.send(
                Message(topic=TOPIC, body=b"in one", properties={"TIMER_DELIVER_MS": soon})
            )
            await client.consume(Subscription(group=GROUP, topics={TOPIC: "*"}), handler)
            await eventually(lambda: len(set(handled)) == COUNT + 1)
            await eventually(lambda: any(row.role == "dead" for row in rows_of(store)))

            rows = rows_of(store)

            firsts = {row.message_id: row for row in rows if row.role == "first"}
            assert {row.content_crc for row in firsts.values()} == set(map(body_checksum, bodies))
            for one in sent:
                row = firsts[one.message_id]
                place = (row.topic, row.queue_id, row.queue_offset)
                assert place == (TOPIC, one.queue.queue_id, one.queue_offset)
            row = firsts[half.message_id]  # not where its half lies
            assert (row.topic, row.queue_id) == (TOPIC, half.queue.queue_id)
            before = sum(one.queue.queue_id == row.queue_id for one in sent)
            assert row.queue_offset == before
            assert half.queue_offset <= before  # Apache's queues follow their log by a moment
            assert {row.role for row in rows if row.message_id == gone} == {"system"}
            (dead,) = (row for row in rows if row.role == "dead")
            assert (dead.topic, dead.consumer_group) == (TOPIC, GROUP)
            assert (dead.message_id, dead.reason) == (dead_one(firsts), "no such card")
            await eventually(lambda: sum(progress(store).values()) == COUNT + 1)
            ends = Counter(row.queue_id for row in firsts.values())
            assert Counter(progress(store)) == ends  # a queue without messages is at 0

    def progress(path: Path) -> dict[int, int]:
        return read_progress(str(path)).get((GROUP, TOPIC), {})

    def dead_one(firsts: dict[str | None, LogRow]) -> str | None:
        return next(i for i, row in firsts.items() if row.content_crc == body_checksum(b"7"))

    play(scene())
    assert not [row for row in rows_of(store) if row.role == "damaged"]
    same_by_pulling(name_servers, store)


def test_messages_of_a_deleted_topic_are_stranded_and_no_others(
    broker: tuple[str, Path], request: pytest.FixtureRequest
) -> None:
    """Given messages of two topics, when one topic is deleted, then the log says of its messages
    that no queue lists them, and of the others what it said before."""
    name_servers, store = broker

    tries = 1 if request.node.callspec.params["broker"] == "bundled" else 5
    names = iter([f"gone{number}" for number in range(tries)])
    topic = next(names)

    def roles() -> set[tuple[str | None, str]]:
        return {(row.topic, row.role) for row in rows_of(store) if row.topic in (topic, "kept")}

    async def listed(client: AsyncClient) -> int:
        """Return how many messages the queues list: Apache's follow its log by a moment."""
        status = (await client.admin.topics.status(topic)).value
        return sum(queue.end - queue.first for queue in status.queues)

    async def delete(client: AsyncClient) -> None:
        await client.create_topic(topic, 2)
        await client.send_many([Message(topic=topic, body=b"gone") for _ in range(9)])
        await eventually(lambda: roles() == {(topic, "first"), ("kept", "first")}, roles)

        async def all_are_listed() -> bool:
            return await listed(client) == 9

        await eventually(all_are_listed)
        await client.admin.topics.delete(topic)

    async def scene() -> None:
        nonlocal topic
        async with AsyncClient(name_servers, settings=PATIENT) as client:
            await registered(client)
            await client.create_topic("kept", 2)
            await client.send(Message(topic="kept", body=b"there"))
            await delete(client)
            while (store / "consumequeue" / topic).exists():
                # Apache's broker leaves a queue's file where a flush holds it at that moment.
                topic = next(names)
                await delete(client)
            await client.send(Message(topic="kept", body=b"later"))
            await eventually(lambda: roles() == {(topic, "stranded"), ("kept", "first")}, roles)

    play(scene())


def same_by_pulling(name_servers: str, store: Path) -> None:
    """Assert that the cluster, read by pulling its queues, tells of messages as its log does."""
    (ledger,) = read_cluster(name_servers, messages_per_partition=37)
    pulled = [
        row
        for partition in ledger.partitions
        for batch in read_pulls(partition, STORED_SCHEMA, check_body=True, timeout=10)
        for row in batch.to_pylist()
    ]
    partitions = read_layout(str(store)).partitions
    batches = [batch for each in partitions for batch in read_batches(each, RECORD_SCHEMA)]
    logged = [
        row
        for batch in batches
        for row in batch.to_pylist()
        if may_have_messages(row["queue_topic"])
    ]

    assert {row.pop(BROKER) for row in pulled} == {ledger.broker.name}
    roles = {row["role"] for row in pulled}
    assert roles >= {"first", "dead", "delayed"}
    assert {row["queue_topic"] for row in pulled if row["due_time"]} == DELAY_TOPICS
    assert sorted(pulled, key=place_in_log) == logged
    assert ledger.progress[GROUP, TOPIC] == read_progress(str(store))[GROUP, TOPIC]
    ends = Counter((row["queue_topic"], row["queue_id"]) for row in logged)
    assert {queue: end for queue, (_, end) in ledger.queues.items() if end} == ends
    (dead,) = {row["queue_topic"] for row in logged if row["role"] == "dead"}
    chosen = read_cluster(name_servers, [dead], since_ms=1)[0].partitions
    assert [(each.topic, each.begin, each.end) for each in chosen] == [(dead, 0, 1)]
    assert read_cluster(name_servers, [dead], since_ms=2**42)[0].partitions == ()
    with pytest.raises(ConfigurationError, match="no broker has the topic nonsense"):
        read_cluster(name_servers, ["nonsense", dead])


def place_in_log(row: Mapping[str, Any]) -> int:
    return int(row["commit_log_offset"])


def test_a_reader_never_sees_half_a_record_while_the_broker_writes(
    broker: tuple[str, Path],
) -> None:
    """Given a broker under load, when its log is read again and again, then every reading is a
    beginning of the next, without damage."""
    name_servers, store = broker

    async def scene() -> None:
        async with AsyncClient(name_servers, settings=PATIENT) as client:
            await registered(client)
            await client.create_topic(TOPIC, 4)
            sent: list[SendResult | Exception] = []
            load = asyncio.create_task(_send_all(client, sent))
            before: list[LogRow] = []
            with pending(lambda: f"{len(sent)} of {LOAD} are sent, {len(before)} records read"):
                while not load.done():
                    rows = await asyncio.to_thread(rows_of, store)
                    assert rows[: len(before)] == before
                    assert not [row for row in rows if row.role == "damaged"]
                    before = rows
                await load

    play(scene())


async def registered(client: AsyncClient) -> None:
    """Wait for the broker: Apache's says that it has booted some seconds before it registers."""

    async def is_known() -> bool:
        return bool((await client.cluster_facts()).brokers)

    await eventually(is_known)


async def halves(client: AsyncClient) -> tuple[str, SendResult]:
    """Send two halves; return the id of the one that is rolled back, and the one committed."""

    async def unknown(_: CheckBack) -> Decision:
        return Decision.UNKNOWN

    await client.transactions.join(GROUP, unknown)
    kept, gone = [
        await client.transactions.send(Message(topic=TOPIC, body=body), GROUP)
        for body in (b"kept", b"gone")
    ]
    await client.transactions.end(gone, Decision.ROLLBACK)
    (result,) = await client.transactions.commit_many([kept])
    assert isinstance(result, SendResult)
    return gone.message_id, result


async def _send_all(client: AsyncClient, sent: list[SendResult | Exception]) -> None:
    while len(sent) < LOAD:
        sent += await client.send_many([Message(topic=TOPIC, body=bytes(500)) for _ in range(100)])
