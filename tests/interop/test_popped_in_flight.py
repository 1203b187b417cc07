"""What is in flight by the message, read from the store of a running broker and by pulls.

The broker is Apache's or ours.
"""

import time
from datetime import UTC, datetime
from pathlib import Path

from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from tests.interop.test_by_message import broker, by_message
from tests.waiting import until
from tests.with_java import INTEROP, Broker, started

from reliable_mq import Client, ClientSettings, Message, ReceivedMessage, SimpleConsumer
from reliable_mq.cli.found_pops import StoredAt, pulled_pops
from reliable_mq.reconcile.brokers.file_popped import read_in_flight
from reliable_mq.reconcile.brokers.popped_pulls import pulled_in_flight
from reliable_mq.reconcile.brokers.spark_cluster import read_cluster
from reliable_mq.runtime.blocking_link import BlockingLink

pytestmark = INTEROP
__all__ = ["broker"]  # the fixture

COUNT = 6
CLUSTER = "DefaultCluster"


def in_flight(broker: Broker, group: str, topic: str) -> dict[int, int]:
    """Return the first offset in flight of each queue, as the files have it now."""
    store = Path(broker.directory) / "store"
    now_ms = int(time.time() * 1000)
    return read_in_flight(str(store), now_ms, now_ms).get((group, topic), {})


def pulled(broker: Broker, group: str, topic: str) -> dict[int, int]:
    """Return the same as a run over the cluster knows it."""
    with BlockingLink(broker.address, 10.0) as link:
        now_ms = int(time.time() * 1000)
        return pulled_in_flight(link.call, CLUSTER, now_ms, now_ms).get((group, topic), {})


def judged(broker: Broker, group: str, topic: str) -> dict[int, int]:
    """Return the progress of a group as `reconcile --cluster` takes it."""
    (ledger,) = read_cluster(broker.name_server_address, is_whole=True)
    return ledger.progress.get((group, topic), {})


def test_the_files_and_pulls_say_what_a_group_has_in_flight(broker: Broker) -> None:
    topic, group = "in-flight-topic", "in-flight-group"
    with Client(broker.name_server_address) as client:
        client.create_topic(topic, 1)
        for number in range(COUNT):
            client.send(Message(topic=topic, body=b"%d" % number))
        with client.simple_consumer(by_message(group, topic)) as receiver:
            found: list[ReceivedMessage] = []
            while len(found) < COUNT:
                found += receiver.receive(COUNT, timeout=10.0, handling=60.0)

            def both_say(wanted: dict[int, int]) -> bool:
                return all(ask(broker, group, topic) == wanted for ask in (in_flight, pulled))

            until(lambda: both_say({0: 0}))
            assert judged(broker, group, topic) == {0: 0}
            first, second, *others, last = sorted(found, key=lambda each: each.queue_offset)
            receiver.ack(first, last)
            until(lambda: both_say({0: 1}))
            receiver.extend(second, 600.0)
            receiver.ack(*others)
            until(lambda: both_say({0: 1}))
            assert judged(broker, group, topic) == {0: 1}
            receiver.ack(second)
            until(lambda: both_say({}))
            until(lambda: judged(broker, group, topic) == {0: COUNT})


def test_the_groups_that_have_a_message_are_found_by_pulls(broker: Broker) -> None:
    """As `stub show` asks; a second attempt lies in the retry topic of the group."""
    topic, group = "shown-topic", "shown-group"
    with Client(broker.name_server_address) as client:
        client.create_topic(topic, 1)
        began = datetime.now(UTC)
        client.send(Message(topic=topic, body=b"look"))
        with client.simple_consumer(by_message(group, topic)) as receiver:
            first = one(receiver)

            def shown(place: StoredAt) -> list[tuple[str, str, int, int, bool]]:
                settings = ClientSettings()
                pops, unasked = pulled_pops([place], began, broker.name_server_address, settings)
                assert unasked == []
                return [
                    (pop.group, pop.topic, pop.attempt, pop.changes, pop.is_acknowledged)
                    for pop in pops
                ]

            place = place_of(first, topic)
            until(lambda: shown(place) == [(group, topic, 1, 0, False)])
            receiver.extend(first, 60.0)
            until(lambda: shown(place) == [(group, topic, 1, 1, False)])
            receiver.retry(first, 1.0)
            second = one(receiver)
            assert second.reconsume_times == 1
            retry = f"%RETRY%{group}_{topic}"
            again = place_of(second, retry)
            until(lambda: shown(again) == [(group, topic, 2, 0, False)])
            receiver.ack(second)
            until(lambda: shown(again) == [(group, topic, 2, 0, True)])


def one(receiver: SimpleConsumer) -> ReceivedMessage:
    found: list[ReceivedMessage] = []
    while not found:
        found = receiver.receive(1, timeout=10.0, handling=60.0)
    return found[0]


def place_of(message: ReceivedMessage, stored_in: str) -> StoredAt:
    queue = message.queue
    return StoredAt(
        queue.broker_name, stored_in, queue.queue_id, message.queue_offset, message.reconsume_times
    )


def test_a_broker_that_keeps_it_outside_of_its_log_is_named(tmp_path: Path) -> None:
    """Apache's `popConsumerKVServiceEnable`: then the log has no notes."""
    settings = {"popConsumerKVServiceInit": "true", "popConsumerKVServiceEnable": "true"}
    made = ApacheRocketMQ(tmp_path, "ASYNC_FLUSH", settings, flags=SMALL_BROKER_FLAGS)
    with started(made) as broker, Client(broker.name_server_address) as client:
        client.create_topic("kept", 1)
        sent = client.send(Message(topic="kept", body=b"look"))
        began = datetime.now(UTC)
        with client.simple_consumer(by_message("keepers", "kept")) as receiver:
            place = place_of(one(receiver), "kept")
            assert place.broker == sent.queue.broker_name
            address = broker.name_server_address
            found, (why,) = pulled_pops([place], began, address, ClientSettings())
            assert found == []
            assert f"at {place.broker} is not known: its setting popConsumerKV" in why
