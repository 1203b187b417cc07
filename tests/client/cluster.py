"""What end-to-end tests share: a broker, a deadline, handlers that remember."""

import asyncio
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import uvloop
from bench.reliable_mq_broker import ReliableMQBroker
from tests.waiting import SECONDS_MAX, within_limit

from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import Message, MessageQueue, ReceivedMessage, SendResult
from reliable_mq.outcomes import CONSUMED, Outcome

QUICK = ClientSettings(rebalance_retry_seconds=0.2, offset_commit_seconds=0.2, hold_seconds=0.05)
PATIENT = msgspec.structs.replace(QUICK, request_timeout_seconds=SECONDS_MAX)
"""For a broker of Apache's that has just started: on a busy machine its first answers take long."""


class Cluster(Protocol):
    """What a test needs of a broker that it shares; clusters of all kinds: `tests/conformance`."""

    name_server_address: str


@contextmanager
def bundled() -> Iterator[ReliableMQBroker]:
    with tempfile.TemporaryDirectory() as directory, ReliableMQBroker(Path(directory)) as broker:
        yield broker


def play(scene: Coroutine[Any, Any, None]) -> None:
    uvloop.run(within_limit(scene))


class Seen:
    """A handler that notes what it gets and answers what it is told to."""

    def __init__(self, *answers: Outcome) -> None:
        self.messages: list[ReceivedMessage] = []
        self._answers = list(answers)

    async def __call__(self, messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        self.messages += messages
        return [self._answers.pop(0) if self._answers else CONSUMED for _ in messages]

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def places(
    messages: Sequence[ReceivedMessage] | Sequence[SendResult],
) -> dict[str, tuple[MessageQueue, int, str]]:
    return {
        one.message_id: (one.queue, one.queue_offset, one.offset_message_id) for one in messages
    }


def numbered(topic: str, count: int, *, keys: int = 0) -> list[Message]:
    return [
        Message(topic=topic, body=b"%d" % at, ordering_key=f"key-{at % keys}" if keys else "")
        for at in range(count)
    ]


class KeyOrder:
    """A handler that notes each key's numbers, and where two of one key run at once."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}
        self.overlaps: list[str] = []
        self._running: set[str] = set()

    async def __call__(self, messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        for message in messages:
            key = message.ordering_key
            if key in self._running:
                self.overlaps.append(key)
            self._running.add(key)
            await asyncio.sleep(0.001)
            self.seen.setdefault(key, []).append(int(message.body))
            self._running.discard(key)
        return [CONSUMED] * len(messages)

    @property
    def numbers(self) -> set[int]:
        return {number for numbers in self.seen.values() for number in numbers}

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))


def in_topic(consumer: AsyncPushConsumer, topic: str) -> list[int]:
    return sorted(queue.queue_id for queue in consumer.queues if queue.topic == topic)
