"""The batcher: sends single messages together, in few requests.

It receives messages one by one. It sends batches, and gives each sender the result of its message.
It does not decide when a message is sent: `linger` does.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

from reliable_mq.client.checked import check_sending
from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.client.connecting.routes import Route, RouteCache
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.send_results import of_future
from reliable_mq.client.sending.asyncio_transactions import FlowDriver
from reliable_mq.client.sending.linger import LingeringMessage, LingerQueues, SendBatch
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.sending.thread_in_flight import InFlight, Place
from reliable_mq.errors import NotSent, ReliableMQError, closed, closed_meanwhile
from reliable_mq.message import Message, SendResult
from reliable_mq.message_checks import size_of
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of

log = logging.getLogger(__name__)

Ticket = asyncio.Future[SendResult] | Future[SendResult]
"""The future with the result of a sender's message."""


class _Wave:
    """The messages between two flushes. `over` is set when all of a flushed wave have ended."""

    def __init__(self) -> None:
        self.count = 0
        self.is_flushed = False
        self.over = asyncio.Event()

    def one_ended(self) -> None:
        self.count -= 1
        if self.is_flushed and not self.count:
            self.over.set()


class _Owner:
    """The sender of a message, and the message's place among those in flight."""

    __slots__ = ("size", "ticket", "wave")

    def __init__(self, ticket: Ticket, size: int, wave: _Wave) -> None:
        self.ticket = ticket
        self.size = size
        self.wave = wave


class AsyncBatcher:
    """Gathers messages into batches. Made by `AsyncClient.batcher`.

    Use it as `async with client.batcher() as batcher`; at its end everything is sent. A message is
    sent when `count` or `size` is reached, after `linger` seconds, or by `flush`.
    The order of each ordering key is kept: each of its queues has one batch in flight at a time. If
    a batch fails, messages that wait for the same queue are not sent, and fail with `NotSent`.

    Invariant C7: each accepted message ends once, and then releases its place.

    Args:
        producer: checks messages and sends batches.
        routes: select the queue of an ordering key.
        run: runs flows.
        in_flight: the client's places; each message takes one.
        rows: decides what is sent when.
        namespace: translates topic names.
        on_closed: called when this batcher has ended.
        hooks: see each message.
    """

    def __init__(
        self,
        producer: SendFlows,
        routes: RouteCache,
        run: FlowDriver,
        in_flight: InFlight,
        rows: LingerQueues,
        namespace: Namespace,
        on_closed: Callable[["AsyncBatcher"], object],
        hooks: Hooks,
    ) -> None:
        self._producer = producer
        self._routes = routes
        self._run = run
        self._in_flight = in_flight
        self._rows = rows
        self._namespace = namespace
        self._on_closed = on_closed
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsorted: dict[str, list[LingeringMessage]] = {}
        self._wave = _Wave()
        self._flushed: list[_Wave] = []
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, message: Message, *, timeout: float = 3.0) -> SendResult:
        """Send a message with others and return where it is stored.

        If this call is cancelled while it waits, the message is still sent.

        Args:
            message: the message to send.
            timeout: seconds to wait for a place among the messages in flight.

        Raises:
            UsageError: when this batcher is closed.
            MessageRefused: when the message cannot be sent. Nothing was sent.
            TooManyInFlight: when no place is free in time. Nothing was sent.
            NotSent: when an earlier message for the same queue has failed.
            RemoteError, Unavailable, ProtocolError: as `AsyncClient.send`, for the whole batch.
        """
        return await asyncio.shield(await self.put(message, timeout=timeout))

    async def put(self, message: Message, *, timeout: float = 3.0) -> asyncio.Future[SendResult]:
        """Accept a message, and return a future of where it is stored.

        Args:
            message: the message to send.
            timeout: seconds to wait for a place among the messages in flight.

        Raises:
            UsageError: when this batcher is closed.
            MessageRefused: when the message cannot be sent. Nothing was sent.
            TooManyInFlight: when no place is free in time. The future has the other errors of
                `send`.
        """
        check_sending(timeout)
        self._refuse_closed()
        size = size_of(message)
        if not self._in_flight.take_places(size):
            self.send_soon()
            await self._in_flight.wait(size, timeout)
        ticket: asyncio.Future[SendResult] = self._loop.create_future()
        try:
            self._add(message, ticket, size)
        except BaseException as error:
            self._in_flight.release_places(size)
            ticket.set_exception(error)
            ticket.exception()  # marks the error as retrieved: it is raised here
            raise
        return ticket

    def accept(
        self, message: Message, ticket: Future[SendResult], size: int, place: Iterator[Place]
    ) -> None:
        """Accept a message of another thread, which has its place. `ticket` gets all errors.

        `place` is for `return_places`, if the thread has cancelled the message.
        """
        if not ticket.set_running_or_notify_cancel():
            self._in_flight.return_places(place)
            self._in_flight.settle()
            return
        try:
            self._add(message, ticket, size)
        except Exception as error:  # noqa: BLE001 - the ticket gets it
            self._in_flight.release_places(size)
            ticket.set_exception(error)

    def _watched(self, message: Message, ticket: Ticket) -> Message:
        """Call the hooks now and at the message's end; return the message as they changed it."""
        sending = self._hooks.begin_send("batcher", (message,))

        def ended(done: Any) -> None:
            self._hooks.end_send(sending, [of_future(done)])

        ticket.add_done_callback(ended)
        return sending.messages[0]

    def send_soon(self) -> None:
        """Send all accepted messages as soon as possible: a caller waits for them."""
        if self._wave.count:
            self._wave.is_flushed = True
            self._flushed = [each for each in self._flushed if not each.over.is_set()]
            self._flushed.append(self._wave)
            self._wave = _Wave()
        self._rows.send_soon()
        self._send_due()

    async def flush(self) -> None:
        """Send waiting messages; return when all messages accepted so far have ended.

        Their senders get the results. Errors of messages are not raised here.
        """
        self.send_soon()
        for wave in self._flushed:
            await wave.over.wait()

    async def close(self) -> None:
        """Refuse new messages; return when all accepted messages have ended."""
        self._is_closed = True
        await self.flush()
        if self._timer is not None:
            self._timer.cancel()
        self._on_closed(self)

    def give_up(self) -> None:
        """Refuse new messages, and fail the waiting ones: their senders get an error.

        Otherwise a sender in a thread would wait for ever after the end of the loop.
        """
        self._is_closed = True
        for waiting in self._rows.give_up():
            self._end(waiting, closed_meanwhile())

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise closed("batcher")

    def _add(self, message: Message, ticket: Ticket, size: int) -> None:
        self._refuse_closed()
        if self._hooks.sends:
            message = self._watched(message, ticket)
        message = self._namespace.whole_message(message)
        prepared = self._producer.prepare(message, time.time_ns() // 1_000_000)
        self._wave.count += 1
        waiting = LingeringMessage(prepared, _Owner(ticket, size, self._wave))
        unsorted = self._unsorted.get(message.topic)
        if unsorted is not None:  # keeps the order of arrival
            unsorted.append(waiting)
            return
        route = self._routes.find(message.topic)
        if route is None or not route.writable:
            self._unsorted[message.topic] = [waiting]
            topic = message.topic
            self._start(self._sort(topic), lambda: self._unsorted.pop(topic, ()))
        elif self._is_full_with(waiting, route):
            self._send_due()
        elif self._timer is None:
            self._set_timer()

    def _sorted_in(self, waiting: LingeringMessage, route: Route) -> bool:
        key = waiting.prepared.message.ordering_key
        queue = self._producer.queue_of(key, route.writable) if key else None
        is_urgent = waiting.owner.wave.is_flushed
        return self._rows.add(waiting, queue, self._loop.time(), is_urgent=is_urgent)

    def _is_full_with(self, waiting: LingeringMessage, route: Route) -> bool:
        """Put a message into its row; return whether a batch may be sent now."""
        try:
            return self._sorted_in(waiting, route)
        except Exception as error:  # noqa: BLE001 - a bug; otherwise the sender would wait for ever
            client_events.BATCH_REFUSED_MESSAGE.log(
                log, traceback_of=True, **facts_of(waiting.prepared.message)
            )
            self._end(waiting, error)
            return False

    async def _sort(self, topic: str) -> None:
        """Put the first messages of a topic into rows, as soon as its queues are known."""
        try:
            route = await self._run(self._routes.to_send(topic))
        except Exception as error:  # noqa: BLE001 - includes bugs; otherwise senders would wait for ever
            if not isinstance(error, ReliableMQError):
                client_events.BATCH_WITHOUT_ROUTE.log(log, traceback_of=True, topic=topic)
            for waiting in self._unsorted.pop(topic):
                self._end(waiting, error)
            return
        for waiting in self._unsorted.pop(topic):
            self._is_full_with(waiting, route)
        self._send_due()

    def _send_due(self) -> None:
        for batch in self._rows.take_due_batches(self._loop.time()):
            self._start(self._send(batch), partial(iter, batch.waiting))
        self._set_timer()

    def _set_timer(self) -> None:
        at = self._rows.next_send_time()
        if at is None or (self._timer is not None and self._timer.when() <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._send_due()

    async def _send(self, batch: SendBatch) -> None:
        results = await self._results(batch)
        failure = next((each for each in results if isinstance(each, Exception)), None)
        for waiting, result in zip(batch.waiting, results, strict=True):
            self._end(waiting, result)
        for waiting in self._rows.end_batch(batch, failed=failure is not None):
            self._end(waiting, NotSent(f"an earlier message of its queue was not sent: {failure}"))
        self._send_due()

    async def _results(self, batch: SendBatch) -> list[SendResult | Exception]:
        try:
            return await self._run(self._producer.send_together(batch.prepared, batch.row.queue))
        except Exception as error:  # noqa: BLE001 - a bug; otherwise senders would wait for ever
            client_events.BATCH_FAILED.log(log, traceback_of=True, topic=batch.row.topic)
            return [error] * len(batch.waiting)

    def _start(
        self, work: Coroutine[Any, Any, None], left: Callable[[], Iterable[LingeringMessage]]
    ) -> None:
        """Start a task. `left` are its messages if the end of the loop cancels it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._task_ended, left))

    def _task_ended(
        self, left: Callable[[], Iterable[LingeringMessage]], task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            for waiting in left():
                self._end(waiting, closed_meanwhile())

    def _end(self, waiting: LingeringMessage, result: SendResult | Exception) -> None:
        owner: _Owner = waiting.owner
        self._in_flight.release_places(owner.size)
        owner.wave.one_ended()
        if owner.ticket.done():  # its sender was cancelled
            return
        if isinstance(result, Exception):
            owner.ticket.set_exception(result)
        else:
            owner.ticket.set_result(self._namespace.own_result(result))
