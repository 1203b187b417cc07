"""Sends without a stub, over a client in memory."""

import asyncio
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reliable_mq.errors import MessageRefused, NoTimers, Unavailable, UsageError
from reliable_mq.message import (
    CONTENT_TYPE,
    Decision,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
)
from reliable_mq.outbox.asyncio_listeners import TransactionResult
from reliable_mq.outbox.asyncio_producer import Producer, SentOutsideTransaction
from reliable_mq.runtime.loop_thread import LoopThread


class Client:
    """Stores everything, after the errors that it is given."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.errors: list[Exception] = []

    async def send(self, message: Message) -> SendResult:
        self.sent.append(message)
        if self.errors:
            raise self.errors.pop()
        return SendResult(
            status=SendStatus.SEND_OK,
            message_id=message.message_id,
            offset_message_id="",
            queue=MessageQueue(message.topic, "b", 0),
            queue_offset=len(self.sent),
        )


class Listeners:
    """Takes halves, and keeps them with their arguments."""

    def __init__(self) -> None:
        self.sent: list[tuple[Message, Any]] = []

    def send(self, message: Message, argument: Any) -> TransactionResult:
        self.sent.append((message, argument))
        return TransactionResult(message.message_id, Decision.COMMIT)

    async def send_async(self, message: Message, argument: Any) -> TransactionResult:
        return self.send(message, argument)


class World:
    def __init__(self) -> None:
        self.loop_thread = LoopThread()
        self.client = Client()
        self.listeners = Listeners()

    def producer(self, policy: str = "warn") -> Producer:
        return Producer(
            self,  # type: ignore[arg-type]
            lambda topic: topic == "managed",
            policy,  # type: ignore[arg-type]
            self.listeners,  # type: ignore[arg-type]
        )

    def send(self, *args: Any, is_async: bool, policy: str = "warn", **options: Any) -> SendResult:
        producer = self.producer(policy)
        if is_async:
            return asyncio.run(producer.send_async(*args, **options))
        return producer.send(*args, **options)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop_thread.close()


BOTH_WAYS = pytest.mark.parametrize("is_async", [False, True])


@BOTH_WAYS
def test_a_message_has_what_its_caller_asked_for(world: World, is_async: bool) -> None:
    delay = timedelta(seconds=3)
    result = world.send(
        "orders",
        {"id": 1},
        is_async=is_async,
        tag="paid",
        key=17,
        ordering_key=5,
        delay=delay,
        properties={"region": "eu"},
        message_id="M" * 32,
    )
    assert (result.message_id, result.queue_offset) == ("M" * 32, 1)
    assert world.client.sent == [
        Message(
            topic="orders",
            body=b'{"id":1}',
            tag="paid",
            keys=("17",),
            message_id="M" * 32,
            ordering_key="5",
            delay=delay,
            properties={"region": "eu", CONTENT_TYPE: "application/json"},
        )
    ]


def test_what_a_caller_leaves_out_is_empty_and_the_id_is_new(world: World) -> None:
    for _ in range(2):
        world.send("orders", b"x", is_async=False, key=None)
    first, second = world.client.sent
    assert (first.keys, first.tag, first.ordering_key) == ((), "", "")
    assert (first.delay, first.deliver_at) == (None, None)
    assert len(first.message_id) == 32
    assert first.message_id != second.message_id
    assert first.properties == {CONTENT_TYPE: "application/octet-stream"}
    world.send("orders", b"x", is_async=False, content_type="text/x-own")
    assert world.client.sent[-1].properties == {CONTENT_TYPE: "text/x-own"}


@pytest.mark.parametrize("seconds", [0, -5])
def test_a_delay_of_nothing_is_at_once(world: World, seconds: int) -> None:
    world.send("orders", b"x", is_async=False, delay=timedelta(seconds=seconds))
    assert world.client.sent[-1].delay is None


@BOTH_WAYS
def test_a_broker_without_timers_gets_the_next_longer_level(world: World, is_async: bool) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    for times, level in (({"delay": timedelta(seconds=8)}, 3), ({"deliver_at": at}, 17)):
        world.client.errors = [NoTimers("older than 5.0")]
        world.send("orders", b"x", is_async=is_async, **times)
        message = world.client.sent[-1]
        assert (message.delay_level, message.delay, message.deliver_at) == (level, None, None)


@BOTH_WAYS
def test_another_error_is_raised_and_nothing_sent_twice(world: World, is_async: bool) -> None:
    world.client.errors = [Unavailable("nobody there")]
    with pytest.raises(Unavailable, match="nobody there"):
        world.send("orders", b"x", is_async=is_async, delay=timedelta(seconds=8))
    assert len(world.client.sent) == 1


@BOTH_WAYS
def test_a_managed_topic_warns_raises_or_passes(world: World, is_async: bool) -> None:
    with pytest.warns(SentOutsideTransaction, match="topic managed is managed") as told:
        world.send("managed", b"x", is_async=is_async)
    if not is_async:
        assert told[0].filename == __file__, "the warning names the line of the caller"
    with pytest.raises(UsageError, match=r"use mq\.transaction\(\)"):
        world.send("managed", b"x", is_async=is_async, policy="raise")
    assert len(world.client.sent) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.send("managed", b"x", is_async=is_async, policy="allow")
        world.send("orders", b"x", is_async=is_async, policy="raise")
        world.send("orders", b"x", is_async=is_async)
    assert len(world.client.sent) == 4


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"tag": "a || b"}, MessageRefused, "no consumer can subscribe to it"),
        ({"message_id": "short"}, UsageError, "must have 32 characters"),
        ({"properties": {"a": "x" * 31_800}}, MessageRefused, "31743 are allowed"),
        ({"properties": {"a": "\x01"}}, MessageRefused, "a"),
        ({"delay": 5}, UsageError, "a timedelta is needed"),
        (
            {"delay": timedelta(1), "deliver_at": datetime.now(UTC)},
            UsageError,
            "not both",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(
    world: World, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        world.send("orders", b"x", is_async=False, **options)
    assert world.client.sent == []


@BOTH_WAYS
def test_a_half_goes_to_the_listener_with_its_argument(world: World, is_async: bool) -> None:
    producer = world.producer()
    if is_async:
        sent = producer.send_in_transaction_async("transfers", b"x", 5, message_id="M" * 32)
        result = asyncio.run(sent)
    else:
        result = producer.send_in_transaction("transfers", b"x", 5, message_id="M" * 32)
    assert result == TransactionResult("M" * 32, Decision.COMMIT)
    ((message, argument),) = world.listeners.sent
    assert (message.topic, message.body, argument) == ("transfers", b"x", 5)
    assert world.client.sent == []
