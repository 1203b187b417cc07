"""A topic that one broker deletes has no old message at the other, which opens the store next."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.probes.asking import pulling, sending, topic
from tests.broker_core.raw_client import RawClient
from tests.waiting import until
from tests.with_java import INTEROP, Broker, skipped_without_java

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.record import iter_records

MADE_AGAIN, DELETED, KEPT, LAST, PART, PASSING = (
    "made_again",
    "deleted",
    "kept",
    "last",
    "part",
    "passing",
)
SETTLE_SECONDS = 30.0

pytestmark = INTEROP


@contextmanager
def opened(broker: Broker) -> Iterator[RawClient]:
    """Run a broker over the store, and stop it cleanly."""
    with skipped_without_java():
        broker.start()
    try:
        with RawClient(broker.address) as client:
            yield client
    finally:
        broker.stop()


def apache(directory: Path) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory, "SYNC_FLUSH", flags=SMALL_BROKER_FLAGS)


def make(client: RawClient, *names: str) -> None:
    for name in names:
        assert client.ask(Ask.UPDATE_AND_CREATE_TOPIC, topic(name)).code == Code.SUCCESS


def delete(client: RawClient, *names: str) -> None:
    for name in names:
        assert client.ask(Ask.DELETE_TOPIC_IN_BROKER, {"topic": name}).code == Code.SUCCESS


def send(client: RawClient, name: str, *bodies: bytes, queue_id: int = 0) -> None:
    for body in bodies:
        header = sending(topic=name, queue_id=queue_id)
        assert client.ask(Ask.SEND_MESSAGE_V2, header, body).code == Code.SUCCESS


def read(client: RawClient, name: str, queue_id: int = 0) -> list[bytes]:
    """Return what a new group reads of a queue, from its begin to its end."""
    bodies: list[bytes] = []
    offset = 0
    while True:
        header = pulling(topic=name, queueId=queue_id, queueOffset=offset, consumerGroup="readers")
        answer = client.ask(Ask.PULL_MESSAGE, header)
        bodies += [record.body for record in iter_records(answer.body)]
        if int(answer.ext_fields["nextBeginOffset"]) == offset:
            return bodies
        offset = int(answer.ext_fields["nextBeginOffset"])


def read_until(client: RawClient, name: str, *bodies: bytes) -> None:
    """Wait until these messages are read: Apache shows one a moment after it acknowledged it."""
    until(
        lambda: read(client, name) == [*bodies],
        lambda: (name, read(client, name)),
        seconds=SETTLE_SECONDS,
        look_seconds=0.1,
    )


def test_nobody_reads_a_deleted_message_when_the_other_broker_opens_the_store(
    tmp_path: Path,
) -> None:
    with opened(ReliableMQBroker(tmp_path)) as ours:
        make(ours, MADE_AGAIN, DELETED, KEPT, LAST, PART)
        for name in (MADE_AGAIN, DELETED, KEPT, PART):
            send(ours, name, b"old 1", b"old 2", b"old 3")
        send(ours, PART, b"old of queue 1", queue_id=1)
        delete(ours, MADE_AGAIN, DELETED)
        make(ours, MADE_AGAIN)
        send(ours, MADE_AGAIN, b"new")
        send(ours, LAST, b"old 1", b"old 2", b"old 3")
        delete(ours, LAST)

    with opened(apache(tmp_path)) as theirs:
        make(theirs, LAST)
        read_until(theirs, MADE_AGAIN, b"new")
        make(theirs, DELETED)
        read_until(theirs, DELETED)
        send(theirs, DELETED, b"at Apache's")
        read_until(theirs, DELETED, b"at Apache's")
        send(theirs, MADE_AGAIN, b"newer")
        read_until(theirs, MADE_AGAIN, b"new", b"newer")
        read_until(theirs, KEPT, b"old 1", b"old 2", b"old 3")
        delete(theirs, KEPT, PART)
        make(theirs, KEPT, PART, PASSING)
        send(theirs, PART, b"new of queue 1", queue_id=1)
        send(theirs, PASSING, b"old")
        read_until(theirs, PASSING, b"old")
        delete(theirs, PASSING)
        assert read(theirs, LAST) == []

    with opened(ReliableMQBroker(tmp_path)) as ours:
        assert read(ours, MADE_AGAIN) == [b"new", b"newer"]
        assert read(ours, DELETED) == [b"at Apache's"]
        assert read(ours, KEPT) == []
        assert (read(ours, PART), read(ours, PART, 1)) == ([], [b"new of queue 1"])
        make(ours, PASSING)
        assert read(ours, PASSING) == read(ours, LAST) == []
        send(ours, KEPT, b"newest")
        assert read(ours, KEPT) == [b"newest"]
        send(ours, DELETED, b"at ours")

    with opened(ReliableMQBroker(tmp_path)) as ours:
        assert read(ours, DELETED) == [b"at Apache's", b"at ours"]
        assert read(ours, KEPT) == [b"newest"]
        assert read(ours, PART) == read(ours, PASSING) == read(ours, LAST) == []


def test_a_topic_that_apaches_broker_made_again_is_empty_though_nothing_was_sent(
    tmp_path: Path,
) -> None:
    with opened(ReliableMQBroker(tmp_path)) as ours:
        make(ours, DELETED, KEPT)
        send(ours, DELETED, b"old")
        send(ours, KEPT, b"old")
    with opened(apache(tmp_path)) as theirs:
        delete(theirs, DELETED)
        make(theirs, DELETED)
    with opened(ReliableMQBroker(tmp_path)) as ours:
        assert (read(ours, DELETED), read(ours, KEPT)) == ([], [b"old"])
