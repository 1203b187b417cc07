"""Declarations at module level: `mq.topic`, `@mq.consumer`, `@mq.idempotent` and others.

Receives the application's declarations. Passes them to its `Declarations`, which checks them.
Connects to nothing.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from reliable_mq.app.declarations import Declarations
from reliable_mq.consume.consumer import DEFAULT_CONCURRENCY
from reliable_mq.database.sql_databases import Databases
from reliable_mq.errors import UsageError
from reliable_mq.idempotency.asyncio_calls import idempotent_function
from reliable_mq.idempotency.key_reading import KeySource
from reliable_mq.idempotency.keyed_function import KeyedFunction, Source
from reliable_mq.idempotency.thread_calls import CallBook
from reliable_mq.limits import RETRY_ATTEMPTS_MAX
from reliable_mq.outbox.thread_half_messages import HalfMessages
from reliable_mq.settings import MAIN_DATABASE

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L")
R = TypeVar("R")


class Declaring:
    """The part of `ReliableMQ` that declares."""

    databases: Databases
    _half_messages: HalfMessages
    _declared: Declarations
    _calls: CallBook

    def topic(self, name: str, *, groups: Sequence[str] | None = None) -> str:
        """Declare a managed topic and the consumer groups its messages must reach.

        Name the groups here that other applications run. Also name groups of this application if
        the topic is sent to where their modules are not imported. Other groups are known anyway.
        An empty list means that no group must read the topic: if there is none, a message is
        confirmed when the broker has stored it. Returns the name.

        Raises:
            ConfigurationError: a name is not legal.
        """
        self._declared.topic(name, groups)
        return name

    def groups_of(self, topic: str, tag: str = "") -> tuple[str, ...]:
        """Return the consumer groups that a message of `topic` must reach to be confirmed.

        A consumer whose tags exclude the message is not included. The topic is a managed one from
        now on.
        """
        return self._declared.groups_of(topic, tag)

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        tag: str = "*",
        ordered: bool = True,
        batch: int = 1,
        max_attempts: int = RETRY_ATTEMPTS_MAX,
        log_receipt: bool = False,
        lease: float | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        database: str = MAIN_DATABASE,
        idempotent_by: KeySource | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function as the handler of a consumer group.

        The function's effect in the database and the row that says CONSUMED are one commit: the
        effect happens exactly once per message and group. Parameters are filled by annotation. A
        `Session` (in an `async def`: an `AsyncSession`) is committed when the function returns. A
        `ReceivedMessage` is the message. Any other parameter is the payload: a pydantic model,
        dataclass, dict, str or bytes. A `def` runs in a thread, an `async def` as a task. The
        function may use savepoints, but ending the session's transaction raises `UsageError`.

        Raise `Retry(after=…)` to be called again, `Reject(reason)` for the dead letters; any other
        exception is a failed attempt.

        Args:
            topic: the topic.
            group: the consumer group; each group has one handler.
            tag: "*", or tags joined by "||". Default "*".
            ordered: messages with one ordering key are handled one at a time, in order (default).
            batch: handle up to this many messages in one database transaction. Default 1. If one
                of them fails, all are rolled back and called again, each behind a savepoint. So
                with more than 1, keep the effects in the session, or set `log_receipt`. Messages
                of a batch in which a process died are called alone from then on.
            max_attempts: attempts before a message is a dead letter; deaths of the process count.
            log_receipt: commit a RECEIVED row before the function runs. Use it for effects outside
                of this database: after a crash, `message.in_doubt` is set. Default False.
            lease: seconds that a claim lasts without renewal; below `duplicate_window_seconds`.
            concurrency: the most calls that run at once.
            database: the name of the database for its effects, its session, its consume log and
                the messages that it sends. Default "main".
            idempotent_by: the business key; of all messages with one key, one has its effect. It is
                a field of the payload ("order.id"), or a function of it, see `key_reading`.

        Raises:
            UsageError: a parameter cannot be filled, or the group already has a handler.
            ConfigurationError: a name or number is not legal, or there is no such database.
        """
        self.databases.check_name(database)

        def register(function: F) -> F:
            self._declared.consumer(
                function,
                topic=topic,
                group=group,
                tag=tag,
                ordered=ordered,
                batch=batch,
                max_attempts=max_attempts,
                log_receipt=log_receipt,
                lease=lease,
                concurrency=concurrency,
                database=database,
                idempotent_by=idempotent_by,
            )
            return function

        return register

    def transaction_listener(self, topic: str) -> Callable[[L], L]:
        """Register the decorated class, or an object, as the listener for halves of a topic.

        See `TransactionListener` for its methods, and `Producer.send_in_transaction` for the send.
        Transactions in a database of this application need none: use `transaction(half=True)`.

        Raises:
            UsageError: it lacks a method, or the topic has a listener.
            ConfigurationError: the topic's name is not legal.
        """

        def register(listener: L) -> L:
            self._half_messages.listeners.register(topic, listener)
            return listener

        return register

    def idempotent(
        self,
        *,
        key: Source,
        scope: str = "",
        compare: Source | Sequence[str] | None = None,
        window: timedelta = timedelta(days=1),
    ) -> Callable[[Callable[..., R]], Callable[..., R]]:
        """Let the decorated function run once for each key; later calls get the stored result.

        It decorates a `def` or an `async def` anywhere, without a consumer or a broker. If a
        parameter is a `Session` (`AsyncSession`), callers leave it out: its effect, the key and the
        result are one commit. A caller that passes a session gets all of it into its own
        transaction. Without a session, an effect elsewhere happens at least once; a parameter
        annotated `IdempotentCall` says whether an earlier attempt may have had it. A call that
        raises leaves the key free.

        Args:
            key: a parameter's name ("request_id"), a field of one ("order.id"), or a function of
                the same arguments.
            scope: keys are unique within it; at most 127 characters; default: module and name of
                the function.
            compare: parameters that must be the same when a key is used again, or a function.
            window: how long a result is kept. Default 1 day.

        The decorated function raises `KeyInvalid` if there is no key, and `KeyReused` if `compare`
        differs. It raises `CallRunning` if a call with this key is running, but `UsageError` inside
        that call.

        Raises:
            UsageError: a parameter has a wrong type, or the result cannot be stored.
        """
        if not isinstance(window, timedelta):
            raise UsageError(f"window={window!r}: a timedelta is needed, timedelta(seconds=…)")
        return lambda function: idempotent_function(
            self._calls,
            KeyedFunction(
                function, key=key, scope=scope, compare=compare, window=window.total_seconds()
            ),
        )
