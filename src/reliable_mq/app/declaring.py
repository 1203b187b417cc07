"""What is written at module level: `mq.topic`, `@mq.consumer`, `@mq.idempotent` and the like.

Receives the application's words; hands them on to its `Declarations`, where they are checked.
Connects nothing.
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
    """The declaring half of `ReliableMQ`."""

    databases: Databases
    _half_messages: HalfMessages
    _declared: Declarations
    _calls: CallBook

    def topic(self, name: str, *, groups: Sequence[str] | None = None) -> str:
        """Declare a managed topic and the consumer groups its messages must reach.

        Groups of consumers that other applications run are named here, and those of this one whose
        modules are not imported wherever the topic is sent to; the others are known by themselves.
        An empty list says that none need be known: where there is none, a message is confirmed when
        the broker has stored it. Returns the name.

        Raises:
            ConfigurationError: when a name is not legal.
        """
        self._declared.topic(name, groups)
        return name

    def groups_of(self, topic: str, tag: str = "") -> tuple[str, ...]:
        """Return the consumer groups that a message of `topic` must reach to be confirmed.

        A consumer whose tags leave the message out is not asked for. The topic is a managed one
        from now on.
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

        The function's effect in the database and the row that says "consumed" are one commit: the
        effect happens exactly once per message and group. Its parameters are filled by annotation:
        a `Session` (in an `async def`: an `AsyncSession`) whose transaction is committed when the
        function returns, a `ReceivedMessage`, and the payload: a pydantic model, dataclass, dict,
        str or bytes. A `def` runs in a thread, an `async def` as a task. Whatever would end the
        session's transaction raises `UsageError` while the function has it; savepoints are its own.

        Return or raise `Retry(after=…)` to be called again, `Reject(reason)` for the dead letters;
        any other exception is a failed attempt, any other value means consumed.

        Args:
            topic: the topic.
            group: the consumer group; one handler each.
            tag: "*", or tags joined by "||".
            ordered: messages with one ordering key are handled one at a time and in order.
            batch: handle up to so many messages in one database transaction. When one of them
                fails, all are rolled back and called again, now with a savepoint each; so with
                more than 1 a handler's effects should lie in its session, or `log_receipt` be set.
                Those during which a process died are called alone from then on.
            max_attempts: attempts until a message is a dead letter; deaths of the process count.
            log_receipt: commit a row that says RECEIVED before the function runs. For effects
                outside this database: after a crash `message.in_doubt` is set.
            lease: seconds for which a claim holds that is not renewed, below `duplicate_window`.
            concurrency: how many calls run at once.
            database: the name of the database that its effects lie in, and with them its session,
                its consume log and the messages it sends itself.
            idempotent_by: the business key, of which one message has its effect: a field of the
                payload ("order.id"), or a function of it, see `key_reading`.

        Raises:
            UsageError: when a parameter cannot be filled or the group has a handler already.
            ConfigurationError: when a name or number is not legal, or there is no such database.
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

        See `TransactionListener` for its methods, `Producer.send_in_transaction` for what sends.
        What is in a database of this application needs none: `transaction(half=True)`.

        Raises:
            UsageError: when it lacks a method or the topic has a listener.
            ConfigurationError: when the topic's name is not legal.
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
        """Let the decorated function run once for each key; later calls get what it returned.

        A `def` or an `async def`, anywhere: no consumer and no broker is needed. With a `Session`
        (`AsyncSession`) among its parameters, which callers leave out, its effect, the key and the
        result are one commit; a caller that gives one gets all of it into its own transaction.
        Without a session, an effect elsewhere happens at least once; a parameter annotated
        `IdempotentCall` says when an earlier attempt may have had it. A call that raises leaves
        the key free.

        Args:
            key: a parameter's name ("request_id"), a field of one ("order.id"), or a function of
                the same arguments.
            scope: within which keys are unique, 127 characters at most; default: module and name
                of the function.
            compare: parameters that must be the same when a key is used again, or a function.
            window: how long a result is remembered.

        The decorated function raises `KeyInvalid` when there is no key, `KeyReused` when `compare`
        differs, `CallRunning` when a call with this key runs, `UsageError` when it is made inside
        of that call.

        Raises:
            UsageError: when a parameter is not what it should be, or the result cannot be stored.
        """
        if not isinstance(window, timedelta):
            raise UsageError(f"window={window!r}: a timedelta is needed, timedelta(seconds=…)")
        return lambda function: idempotent_function(
            self._calls,
            KeyedFunction(
                function, key=key, scope=scope, compare=compare, window=window.total_seconds()
            ),
        )
