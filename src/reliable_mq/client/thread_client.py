"""The synchronous face: the same verbs as `AsyncClient`, over a loop in a background thread."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from reliable_mq.client.asyncio_client import DEFAULT_SETTINGS, AsyncClient
from reliable_mq.client.asyncio_consumer import AsyncPushConsumer
from reliable_mq.client.routes import Route
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.subscription import Outcome, Subscription
from reliable_mq.client.transaction import CheckBack, Half
from reliable_mq.errors import UsageError
from reliable_mq.message import Decision, Message, MessageQueue, ReceivedMessage, SendResult
from reliable_mq.runtime.loop_thread import LoopThread

SyncHandler = Callable[[Sequence[ReceivedMessage]], Sequence[Outcome]]
"""Runs in a thread of the consumer; gets and returns what a `Handler` does."""


Check = Callable[[CheckBack], Decision]
"""Says what became of a half message that a broker asks for."""


class PushConsumer:
    """A running consumer. Made by `Client.consume`."""

    def __init__(
        self, thread: LoopThread, consumer: AsyncPushConsumer, pool: ThreadPoolExecutor
    ) -> None:
        self._thread = thread
        self._consumer = consumer
        self._pool = pool

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._consumer.queues

    def close(self) -> None:
        """Start nothing more, let what runs finish, commit, unlock and leave the group."""
        self._thread.run(self._consumer.close())
        self._pool.shutdown(wait=False)


class Client:
    """Sends and consumes without an event loop of the caller's own; may be used by many threads.

    Use it as `with Client(...) as client`, or call `start` and `close`.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: time-outs, limits and intervals.

    Raises:
        ConfigurationError: when `name_servers` does not read.
    """

    def __init__(self, name_servers: str, *, settings: ClientSettings = DEFAULT_SETTINGS) -> None:
        self._client = AsyncClient(name_servers, settings=settings)
        self._thread: LoopThread | None = None
        self._consumers: list[PushConsumer] = []
        self._pools: list[ThreadPoolExecutor] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def client_id(self) -> str:
        """How brokers know this client."""
        return self._client.client_id

    def start(self) -> None:
        """Start the background thread.

        Raises:
            UsageError: when the client was started before.
        """
        thread = self._thread or LoopThread()
        thread.run(self._client.start())
        self._thread = thread

    def close(self) -> None:
        """Close the consumers gracefully, end the connections and the background thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            for consumer in self._consumers:
                consumer.close()
            thread.run(self._client.close())
        finally:
            thread.close()
            for pool in self._pools:
                pool.shutdown(wait=False)

    def send(
        self, message: Message, *, timeout: float = 3.0, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send one message and return where it is stored; see `Producer.send`."""
        return self._started().run(self._client.send(message, timeout=timeout, queue=queue))

    def send_async(
        self, message: Message, *, timeout: float = 3.0, queue: MessageQueue | None = None
    ) -> Future[SendResult]:
        """Begin to send one message and return a future of where it is stored."""
        return self._started().submit(self._client.send(message, timeout=timeout, queue=queue))

    def send_oneway(self, message: Message) -> None:
        """Send one message without asking for an answer; see `Producer.send_oneway`."""
        self._started().run(self._client.send_oneway(message))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request; see `Producer.send_batch`."""
        return self._started().run(self._client.send_batch(messages, timeout=timeout, queue=queue))

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send messages of any topics in few requests; see `AsyncClient.send_many`."""
        return self._started().run(self._client.send_many(messages))

    def join_transactions(self, group: str, check: Check) -> None:
        """Answer for the half messages of a producer group, whoever of it sent them.

        Args:
            group: the producer group.
            check: says what became of a half; called in a thread, at most four at a time.
        """
        pool = ThreadPoolExecutor(4, f"rmq-{group}")
        self._pools.append(pool)

        async def in_thread(asked: CheckBack) -> Decision:
            return await asyncio.get_running_loop().run_in_executor(pool, check, asked)

        self._started().run(self._client.transactions.join(group, in_thread))

    def send_half(self, message: Message, group: str, *, timeout: float = 3.0) -> Half:
        """Send a half message of a group that was joined; see `TransactionFlows.send`."""
        sending = self._client.transactions.send(message, group, timeout=timeout)
        return self._started().run(sending)

    def end_half(self, half: Half, decision: Decision) -> None:
        """End a half and wait until the broker has it stored; see `TransactionFlows.end`."""
        self._started().run(self._client.transactions.end(half, decision))

    def consume(self, subscription: Subscription, handler: SyncHandler) -> PushConsumer:
        """Begin to read for a consumer group; the handler runs in `concurrency` threads.

        Raises:
            UsageError: when this client consumes for the group already.
        """
        pool = ThreadPoolExecutor(subscription.concurrency, f"rmq-{subscription.group}")

        async def in_thread(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            return await asyncio.get_running_loop().run_in_executor(pool, handler, messages)

        thread = self._started()
        running = thread.run(self._client.consume(subscription, in_thread))
        consumer = PushConsumer(thread, running, pool)
        self._consumers.append(consumer)
        return consumer

    def create_topic(self, topic: str, queues: int = 8) -> None:
        """Create a topic at every broker; see `admin.create_topic`."""
        self._started().run(self._client.create_topic(topic, queues))

    def consumer_progress(self, group: str, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """Return (committed, maximum) offsets by queue; see `admin.consumer_progress`."""
        return self._started().run(self._client.consumer_progress(group, topic))

    def topic_route(self, topic: str) -> Route:
        """Return where `topic` is, asked from the name servers now."""
        return self._started().run(self._client.topic_route(topic))

    def _started(self) -> LoopThread:
        if self._thread is None:
            raise UsageError("this client is not started: use it in `with`, or call start()")
        return self._thread
