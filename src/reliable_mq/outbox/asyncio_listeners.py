"""`@mq.transaction_listener`: the application decides about half messages of its own topics.

For local transactions outside of our databases. Receives messages and the decisions of their
listeners. Sends halves and ends them. Never guesses: while a listener says UNKNOWN, raises or is
missing, the half waits, and its broker asks any process of the application.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.errors import ReliableMQError, UsageError
from reliable_mq.limits import TOPIC_LENGTH_MAX
from reliable_mq.message import CheckBack, Decision, Half, Message, ReceivedMessage
from reliable_mq.names import check_name
from reliable_mq.outbox.thread_link import ProcessLink
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

_APPLICATION_LENGTH_MAX = 60


class TransactionListener(Protocol):
    """The methods that `@mq.transaction_listener` needs; both may be `async def`."""

    def execute(self, message: Message, argument: Any) -> Decision | Awaitable[Decision]:
        """Run the local transaction of a stored half, and return its end.

        After UNKNOWN or an exception, `check` decides.
        """
        ...

    def check(self, message: ReceivedMessage) -> Decision | Awaitable[Decision]:
        """Return how the transaction of a half ended. Called in any process and at any later time.

        After UNKNOWN or an exception, the broker asks again, as often as it is configured to.
        """
        ...


class TransactionResult(msgspec.Struct, frozen=True):
    """The result of `send_in_transaction`: the message's id and the listener's decision."""

    message_id: str
    decision: Decision


class Listeners:
    """The transaction listeners of one application in this process.

    Invariant: a topic has one listener. A half is sent only after this process joined its group.

    Args:
        application: the application's name; the producer group is named after it.
        link: the application's connections.
    """

    def __init__(self, application: str, link: ProcessLink) -> None:
        self._group = f"{application[:_APPLICATION_LENGTH_MAX]}_transactions"
        self._link = link
        self._listeners: dict[str, TransactionListener] = {}
        self._joined: AsyncClient | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._listeners)

    def forget_parent(self) -> None:
        """Join again after a fork: another thread of the parent may have held the lock."""
        self._joined, self._lock = None, threading.Lock()

    def register(self, topic: str, given: Any) -> None:
        """Register a listener: an object, or a class whose constructor needs no arguments.

        Raises:
            UsageError: it lacks a method or cannot be made, or the topic has a listener.
            ConfigurationError: the topic's name is not legal.
        """
        check_name("topic", topic, TOPIC_LENGTH_MAX)
        name = getattr(given, "__name__", type(given).__name__)
        if topic in self._listeners:
            raise UsageError(f"topic {topic} already has a transaction listener")
        for method in ("execute", "check"):
            if not callable(getattr(given, method, None)):
                raise UsageError(f"transaction listener {name} has no method {method}")
        if isinstance(given, type):
            try:
                given = given()
            except TypeError as error:
                raise UsageError(
                    f"transaction listener {name} cannot be made without arguments ({error}): "
                    f"pass an object, mq.transaction_listener({topic!r})({name}(…))"
                ) from error
        self._listeners[topic] = given

    def join(self) -> None:
        """Start to answer check-backs for the application's halves; a second call does nothing."""
        with self._lock:
            client = self._link.client
            if self._joined is not client:
                joining = client.transactions.join(self._group, self._answer)
                self._link.loop_thread.run(joining)
                self._joined = client

    def send(self, message: Message, argument: Any) -> TransactionResult:
        """Send a half, run its listener's `execute` in this thread, then end the half."""
        listener = self._listener(message.topic)
        self.join()
        run, transactions = self._link.loop_thread.run, self._link.client.transactions
        half = run(transactions.send(message, self._group))
        decision = listener.execute(message, argument)
        if inspect.isawaitable(decision):
            decision = run(_awaited(decision))
        self._check(message.topic, decision)
        run(self._end(half, decision))
        return TransactionResult(half.message_id, decision)

    async def send_async(self, message: Message, argument: Any) -> TransactionResult:
        """Send a half from any event loop, run its listener's `execute` there, end the half."""
        listener = self._listener(message.topic)
        await asyncio.to_thread(self.join)
        submit, transactions = self._link.loop_thread.submit, self._link.client.transactions
        half = await asyncio.wrap_future(submit(transactions.send(message, self._group)))
        decision = await _called(listener.execute, message, argument)
        self._check(message.topic, decision)
        await asyncio.wrap_future(submit(self._end(half, decision)))
        return TransactionResult(half.message_id, decision)

    async def _end(self, half: Half, decision: Decision) -> None:
        if decision is Decision.UNKNOWN:
            return
        try:
            await self._link.client.transactions.end(half, decision)
        except ReliableMQError as error:
            application_events.HALF_LEFT.log(
                log, message_id=half.message_id, topic=half.queue.topic, error=error
            )

    async def _answer(self, asked: CheckBack) -> Decision:
        topic = asked.message.topic
        listener = self._listeners.get(topic)
        if listener is None:
            application_events.LISTENER_MISSING.log(log, topic=topic)
            return Decision.UNKNOWN
        decision = await _called(listener.check, asked.message)
        self._check(topic, decision)
        return decision

    def _listener(self, topic: str) -> TransactionListener:
        listener = self._listeners.get(topic)
        if listener is None:
            raise UsageError(
                f"topic {topic} has no transaction listener: decorate one with "
                f"@mq.transaction_listener({topic!r}), or use mq.transaction(half=True)"
            )
        return listener

    def _check(self, topic: str, decision: object) -> None:
        if not isinstance(decision, Decision):
            raise UsageError(
                f"the transaction listener of topic {topic} returned {decision!r}: return "
                "Decision.COMMIT, ROLLBACK or UNKNOWN"
            )


async def _awaited(answer: Awaitable[Decision]) -> Decision:
    return await answer


async def _called(method: Any, *given: Any) -> Decision:
    """Call a method: a coroutine function as a task, any other in a thread."""
    if inspect.iscoroutinefunction(method):
        answer: Decision = await method(*given)
        return answer
    answer = await asyncio.to_thread(method, *given)
    return await answer if inspect.isawaitable(answer) else answer
