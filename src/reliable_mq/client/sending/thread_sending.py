"""The synchronous client's verbs for sending: those of `AsyncSending`, for threads."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Never, Self

from reliable_mq.client.checked import check_sending
from reliable_mq.client.documented import documented_by
from reliable_mq.client.sending.asyncio_batcher import AsyncBatcher
from reliable_mq.client.sending.asyncio_sending import (
    LINGER_SECONDS,
    SEND_OPTIONS,
    AsyncSending,
    engine_of,
)
from reliable_mq.client.sending.thread_in_flight import InFlight
from reliable_mq.client.sending.thread_singles import send_single
from reliable_mq.errors import UsageError, closed
from reliable_mq.message import Message, MessageQueue, ReceivedMessage, SendResult
from reliable_mq.message_checks import size_of
from reliable_mq.misspelt import check_names
from reliable_mq.runtime.loop_thread import LoopThread


class Batcher:
    """Gathers messages of many threads into batches. Made by `Client.batcher`.

    Use it as `with client.batcher() as batcher`; at its end everything is sent. `AsyncBatcher`
    explains when messages are sent and which order is kept. Messages of one thread keep their
    order.
    """

    def __init__(self, thread: LoopThread, batcher: AsyncBatcher, in_flight: InFlight) -> None:
        self._thread = thread
        self._batcher = batcher
        self._in_flight = in_flight

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: Message, *, timeout: float = 3.0) -> SendResult:
        """Send a message with others and return where it is stored.

        Args:
            message: the message to send.
            timeout: seconds to wait for a place among the messages in flight.

        Raises:
            UsageError: when this batcher or its client is closed.
            MessageRefused: when the message cannot be sent. Nothing was sent.
            TooManyInFlight: when no place is free in time. Nothing was sent.
            NotSent: when an earlier message for the same queue has failed.
            RemoteError, Unavailable, ProtocolError: as `Client.send`, for the whole batch.
        """
        return self.put(message, timeout=timeout).result()

    def put(self, message: Message, *, timeout: float = 3.0) -> Future[SendResult]:
        """Accept a message, and return a future of where it is stored.

        Backpressure: it blocks a producer that is faster than its brokers, as `Client.send_async`.

        Args:
            message: the message to send.
            timeout: seconds to wait for a place among the messages in flight.

        Raises:
            UsageError: when the client is closed.
            TooManyInFlight: when no place is free in time. Nothing was sent. The future has the
                other errors of `send`.
        """
        check_sending(timeout)
        size, in_flight = size_of(message), self._in_flight
        ticket: Future[SendResult] = Future()
        place = iter([(size, 1)])  # an iterator releases the place only once
        if not in_flight.take_places(size):
            self._thread.call_soon(self._batcher.send_soon)
            in_flight.block(size, timeout)
        try:
            self._thread.call_soon(self._batcher.accept, message, ticket, size, place)
        except BaseException:  # the client is closed, or a signal handler raised
            if ticket.cancel():  # otherwise the batcher has it
                in_flight.return_places(place)
                in_flight.settle()
            raise
        return ticket

    def flush(self) -> None:
        """Send waiting messages; return when all messages that this thread has put have ended.

        The futures have the results. Errors of messages are not raised here.
        """
        self._thread.run(self._batcher.flush())

    def close(self) -> None:
        """Refuse new messages; return when all accepted messages have ended."""
        self._thread.run(self._batcher.close())


@documented_by(AsyncSending)
class ThreadSending:
    """The verbs of `Client` for sending.

    Args:
        client: sends on the loop of `_thread` while that runs.
    """

    def __init__(self, client: AsyncSending) -> None:
        self._sending = client
        self._engine = engine_of(client)
        self._thread: LoopThread | None = None
        self._is_closed = False

    def send(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        **misspelt: Never,
    ) -> SendResult:
        """Send one message and return where it is stored; see `AsyncClient.send`."""
        if misspelt:
            check_names("send()", misspelt, SEND_OPTIONS)
        thread, engine, size = self._started(), self._engine, size_of(message)
        if engine.hooks.sends or not engine.in_flight.take_places(size):
            return thread.run(self._sending.send(message, timeout=timeout, queue=queue))
        try:
            return send_single(engine, thread, message, timeout, queue)
        finally:
            engine.in_flight.return_places([(size, 1)])
            engine.in_flight.settle()

    def send_async(
        self, message: Message, *, timeout: float = 3.0, queue: MessageQueue | None = None
    ) -> Future[SendResult]:
        """Begin to send one message and return a future of where it is stored.

        Backpressure: it blocks while `in_flight_count_max` messages, or `in_flight_bytes_max` bytes
            of
        bodies, are in flight.

        Args:
            message: the message to send.
            timeout: seconds for the wait, and again for all attempts together.
            queue: the queue to use; by default by ordering key, or else round-robin.

        Raises:
            TooManyInFlight: when no place is free in time. Nothing was sent. The future has the
                other errors of `AsyncClient.send`.
        """
        check_sending(timeout, queue)
        thread, size = self._started(), size_of(message)
        in_flight = self._engine.in_flight
        place = iter([(size, 1)])  # an iterator releases the place only once

        def give(_: "Future[SendResult]") -> None:
            in_flight.return_places(place)
            in_flight.settle()

        if not in_flight.take_places(size):
            in_flight.block(size, timeout)
        try:
            sending = self._engine.send_unbounded(message, timeout=timeout, queue=queue)
            future = thread.submit(sending)
            # Not in the coroutine: one that is cancelled before its start runs no code.
            future.add_done_callback(give)
        except BaseException:  # the client is closed, or a signal handler raised
            in_flight.return_places(place)
            in_flight.settle()
            raise
        return future

    def send_oneway(self, message: Message) -> None:
        """Send one message without asking for an answer: it stays unknown whether it is stored.

        See `AsyncClient.send_oneway`.
        """
        self._started().run(self._sending.send_oneway(message))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Send messages of one topic to one queue in one request, all or none.

        See `AsyncClient.send_batch`.
        """
        return self._started().run(self._sending.send_batch(messages, timeout=timeout, queue=queue))

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send messages of any topics in few requests, several in flight at the same time.

        See `AsyncClient.send_many`.
        """
        return self._started().run(self._sending.send_many(messages))

    def batcher(
        self,
        *,
        count: int | None = None,
        size: int | None = None,
        linger: float = LINGER_SECONDS,
    ) -> Batcher:
        """Return a batcher: it sends single messages together, in few requests.

        Close it, or use it in `with`; `close` of the client closes it too.

        Args:
            count: maximum messages in a batch; by default the setting `batch_count_max`.
            size: maximum bytes in a batch; by default the setting `batch_bytes_max`.
            linger: seconds that a message waits for others.

        Raises:
            UsageError: when the client is not started, or a value has a wrong type.
            ConfigurationError: when a value is invalid.
        """

        async def make() -> AsyncBatcher:
            return self._sending.batcher(count=count, size=size, linger=linger)

        thread = self._started()
        return Batcher(thread, thread.run(make()), self._engine.in_flight)

    def recall(self, handle: str, *, timeout: float = 3.0) -> str:
        """Cancel a timed message before its time, and return its message id.

        See `AsyncClient.recall`.
        """
        return self._started().run(self._sending.recall(handle, timeout=timeout))

    def request(self, message: Message, *, timeout: float = 3.0) -> ReceivedMessage:
        """Send a message and return the consumer's reply; see `AsyncClient.request`."""
        return self._started().run(self._sending.request(message, timeout=timeout))

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        timeout: float = 3.0,
    ) -> SendResult:
        """Answer a request; return when the other client has the reply; see `AsyncClient.reply`."""
        thread = self._started()
        return thread.run(
            self._sending.reply(request, body, tag=tag, properties=properties, timeout=timeout)
        )

    def _started(self) -> LoopThread:
        if self._thread is None:
            if self._is_closed:
                raise closed("client")
            raise UsageError("this client is not started: use it in `with`, or call start()")
        return self._thread
