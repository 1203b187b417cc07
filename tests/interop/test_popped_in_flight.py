"""What is in flight by the message is read from the store of a running broker, Apache's or ours."""

import time
from pathlib import Path

from tests.interop.test_by_message import broker, by_message
from tests.waiting import until
from tests.with_java import INTEROP, Broker

from reliable_mq import Client, Message, ReceivedMessage
from reliable_mq.reconcile.brokers.file_popped import read_in_flight

pytestmark = INTEROP
__all__ = ["broker"]  # the fixture

COUNT = 6


def in_flight(broker: Broker, group: str, topic: str) -> dict[int, int]:
    """Return the first offset in flight of each queue, as the files have it now."""
    store = Path(broker.directory) / "store"
    now_ms = int(time.time() * 1000)
    return read_in_flight(str(store), now_ms, now_ms).get((group, topic), {})


def test_the_files_say_what_a_group_has_in_flight(broker: Broker) -> None:
    topic, group = "in-flight-topic", "in-flight-group"
    with Client(broker.name_server_address) as client:
        client.create_topic(topic, 1)
        for number in range(COUNT):
            client.send(Message(topic=topic, body=b"%d" % number))
        with client.simple_consumer(by_message(group, topic)) as receiver:
            found: list[ReceivedMessage] = []
            while len(found) < COUNT:
                found += receiver.receive(COUNT, timeout=10.0, handling=60.0)
            until(lambda: in_flight(broker, group, topic) == {0: 0})
            first, second, *others, last = sorted(found, key=lambda each: each.queue_offset)
            receiver.ack(first, last)
            until(lambda: in_flight(broker, group, topic) == {0: 1})
            receiver.extend(second, 600.0)
            receiver.ack(*others)
            until(lambda: in_flight(broker, group, topic) == {0: 1})
            receiver.ack(second)
            until(lambda: in_flight(broker, group, topic) == {})
