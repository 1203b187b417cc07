"""What an application does with Apache's official client for Python, one story a run.

Runs in the rivals' environment: python stories.py ENDPOINT STORY TOPIC GROUP
Prints one JSON object, which the test of the story examines. It knows nothing of the server.
"""

import json
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

WAIT_SECONDS = 60.0


def message_of(topic: str, number: int, **more: Any) -> Message:
    message = Message()
    message.topic = topic
    message.body = f"body {number}".encode()
    for name, value in more.items():
        setattr(message, name, value)
    return message


class Story:
    """One run: its clients are closed at its end."""

    def __init__(self, endpoint: str, topic: str, group: str, user: str, secret: str) -> None:
        credentials = Credentials(user, secret) if user else Credentials()
        self.configuration = ClientConfiguration(endpoint, credentials)
        self.secured = {"tls_enable": bool(user)}  # who signs comes over TLS
        self.topic, self.group = topic, group
        self.opened: list[Any] = []

    def started(self, client: Any) -> Any:
        client.startup()
        self.opened.append(client)
        return client

    def producer(self, checker: Any = None) -> Any:
        return self.started(
            Producer(self.configuration, (self.topic,), checker=checker, **self.secured)
        )

    def consumer(self, expression: FilterExpression | None = None, wait: int = 5) -> Any:
        subscription = {self.topic: expression or FilterExpression()}
        return self.started(
            SimpleConsumer(
                *(self.configuration, self.group, subscription), await_duration=wait, **self.secured
            )
        )

    def received(self, consumer: Any, count: int, invisible: int) -> list[Message]:
        """Receive; an endpoint may not yet have taken in what the client told of itself."""
        end = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return consumer.receive(count, invisible) or []
            except Exception:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def drain(self, consumer: Any, count: int, seconds: float = WAIT_SECONDS) -> list[Message]:
        """Receive and acknowledge so many messages."""
        found: list[Message] = []
        end = time.monotonic() + seconds
        while len(found) < count and time.monotonic() < end:
            for message in self.received(consumer, 32, 15):
                consumer.ack(message)
                found.append(message)
        return found

    def close(self) -> None:
        for client in reversed(self.opened):
            client.shutdown()


def simple(story: Story) -> dict[str, Any]:
    """Ten messages are sent, received, and acknowledged."""
    consumer, producer = story.consumer(), story.producer()
    sent = {}
    for number in range(10):
        message = message_of(story.topic, number, tag=f"tag{number % 2}")
        Message.keys.fset(message, f"key{number}", "all")  # an assignment gives it one key
        message.add_property("shop", f"shop {number}")
        sent[producer.send(message).message_id] = number
    found = story.drain(consumer, 10)
    seen = [
        {
            "number": sent.get(each.message_id),
            "body": each.body.decode(),
            "tag": each.tag,
            "keys": sorted(each.keys),
            "shop": (each.properties or {}).get("shop"),
            "attempt": each.delivery_attempt,
            "corrupted": each.corrupted,
        }
        for each in found
    ]
    return {
        "seen": sorted(seen, key=lambda each: each["body"]),
        "left": len(consumer.receive(1, 15) or []),
    }


def change(story: Story) -> dict[str, Any]:
    """A message whose invisible time is cut comes back, and once acknowledged not."""
    consumer, producer = story.consumer(), story.producer()
    producer.send(message_of(story.topic, 1))
    first, *_ = story.received(consumer, 1, 60) or consumer.receive(1, 60)
    began = time.monotonic()
    consumer.change_invisible_duration(first, 2)
    again: list[Message] = []
    while not again and time.monotonic() - began < WAIT_SECONDS:
        again = consumer.receive(1, 15) or []
    seconds = time.monotonic() - began
    consumer.ack(again[0])
    left = consumer.receive(1, 15) or []
    return {
        "same": again[0].message_id == first.message_id,
        "attempts": [first.delivery_attempt, again[0].delivery_attempt],
        "seconds": seconds,
        "left": len(left),
    }


class Listener(MessageListener):  # type: ignore[misc]
    def __init__(self, fails: dict[str, int]) -> None:
        self.fails = dict(fails)
        self.seen: list[tuple[str, int, float]] = []
        self.lock = threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        body = message.body.decode()
        with self.lock:
            self.seen.append((body, message.delivery_attempt, time.time()))
            if self.fails.get(body, 0) > 0:
                self.fails[body] -= 1
                return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS

    def wait(self, count: int) -> list[tuple[str, int, float]]:
        end = time.monotonic() + WAIT_SECONDS
        for _ in range(20 * int(WAIT_SECONDS)):
            if len(self.seen) >= count or time.monotonic() > end:
                break
            time.sleep(0.05)
        return list(self.seen)


def push(story: Story) -> dict[str, Any]:
    """A push consumer gets all messages; one fails once, and comes again."""
    listener = Listener({"body 3": 1})
    story.started(
        PushConsumer(
            *(story.configuration, story.group, listener, {story.topic: FilterExpression()}),
            **story.secured,
        )
    )
    producer = story.producer()
    for number in range(10):
        producer.send(message_of(story.topic, number))
    seen = listener.wait(11)
    return {"seen": sorted((body, attempt) for body, attempt, _ in seen)}


def fifo(story: Story) -> dict[str, Any]:
    """Messages of one group come in their order, also when one fails once."""
    listener = Listener({"body 2": 1})
    story.started(
        PushConsumer(
            *(story.configuration, story.group, listener, {story.topic: FilterExpression()}),
            **story.secured,
        )
    )
    producer = story.producer()
    for number in range(6):
        producer.send(message_of(story.topic, number, message_group="order-1"))
    return {"seen": [body for body, _, _ in listener.wait(7)]}


def delay(story: Story) -> dict[str, Any]:
    """A message comes when it is due; one that was recalled does not."""
    consumer, producer = story.consumer(), story.producer()
    began = time.time()
    producer.send(message_of(story.topic, 1, delivery_timestamp=int(began + 4)))
    later = producer.send(message_of(story.topic, 2, delivery_timestamp=int(began + 10)))
    recalled = producer.recall_message(story.topic, later.recall_handle)
    found = story.drain(consumer, 1)
    late = time.time() - began
    left = story.drain(consumer, 1, 14)
    return {
        "bodies": [each.body.decode() for each in found],
        "seconds": late,
        "recalled": bool(recalled),
        "left": [each.body.decode() for each in left],
    }


class Checker(TransactionChecker):  # type: ignore[misc]
    def __init__(self) -> None:
        self.asked: list[str] = []

    def check(self, message: Message) -> TransactionResolution:
        self.asked.append(message.body.decode())
        return TransactionResolution.COMMIT


def transaction(story: Story) -> dict[str, Any]:
    """One is committed, one rolled back, and one committed when the broker asks."""
    checker = Checker()
    consumer, producer = story.consumer(), story.producer(checker)
    for number, verb in ((1, "commit"), (2, "rollback"), (3, "")):
        begun = producer.begin_transaction()
        producer.send(message_of(story.topic, number), begun)
        if verb:
            getattr(begun, verb)()
    found = story.drain(consumer, 2)
    return {
        "bodies": sorted(each.body.decode() for each in found),
        "asked": sorted(set(checker.asked)),
        "left": len(consumer.receive(1, 15) or []),
    }


def filters(story: Story) -> dict[str, Any]:
    """Filters by tag and by SQL92 let through what they say."""
    by_tag = story.consumer(FilterExpression("red || blue"))
    producer = story.producer()
    for number, tag in enumerate(("red", "green", "blue", "red")):
        producer.send(message_of(story.topic, number, tag=tag))
    tagged = story.drain(by_tag, 3)
    story.group += "-sql"
    by_sql = story.consumer(FilterExpression("size > 1", FilterType.SQL))
    story.received(by_sql, 1, 15)
    for number in range(4):
        message = message_of(story.topic, number + 10)
        message.add_property("size", str(number))
        producer.send(message)
    sized = story.drain(by_sql, 2)
    return {
        "tagged": sorted(each.body.decode() for each in tagged),
        "sized": sorted(each.body.decode() for each in sized),
    }


def dead(story: Story) -> dict[str, Any]:
    """A message that always fails goes to the dead-letter topic."""
    listener = Listener({"body 1": 100})
    story.started(
        PushConsumer(
            *(story.configuration, story.group, listener, {story.topic: FilterExpression()}),
            **story.secured,
        )
    )
    producer = story.producer()
    producer.send(message_of(story.topic, 1))
    listener.wait(2)
    sys.stdin.read()  # until the test has seen the dead letter
    return {"attempts": [attempt for _, attempt, _ in listener.seen]}


STORIES = {
    each.__name__: each for each in (simple, change, push, fifo, delay, transaction, filters, dead)
}


def main(
    endpoint: str, name: str, topic: str, group: str, user: str = "", secret: str = ""
) -> None:
    story = Story(endpoint, topic, group, user, secret)
    try:
        result = STORIES[name](story)
    finally:
        story.close()
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
