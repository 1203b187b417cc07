"""`mq.transaction()`: the business transaction whose messages are stubs in the same commit.

Receives a session or a Core connection, or makes a session. Hands on a block that sends into its
transaction. Refuses to decide over a transaction that somebody else began.
"""

from collections.abc import Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar, Unpack

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from reliable_mq.errors import InvariantBroken, UsageError
from reliable_mq.outbox.composing import ManyOptions, StubOptions
from reliable_mq.outbox.sql_outbox import SqlOutbox

Source = Session | Connection | AsyncSession | AsyncConnection
"""What a transaction is of."""
Given = Source | scoped_session[Session] | async_scoped_session[AsyncSession]
"""What `mq.transaction(…)` may be given."""

S = TypeVar("S")
C = TypeVar("C")
T = TypeVar("T")


class _Block(Generic[S, C]):
    """The block of one transaction; after its end nothing that is sent would be committed.

    Invariant: it is of a session or of a connection, never of both.
    """

    is_open = True

    def __init__(self, outbox: SqlOutbox, *, session: S | None, connection: C | None) -> None:
        self._outbox = outbox
        self._session = session
        self._connection = connection

    @property
    def session(self) -> S:
        """The session whose transaction this is.

        Raises:
            UsageError: when it is a connection's.
        """
        if self._session is None:
            raise UsageError("this transaction is a connection's and has no session: tx.connection")
        return self._session

    @property
    def connection(self) -> C:
        """The Core connection that was given to `mq.transaction`.

        Raises:
            UsageError: when a session was given, or none.
        """
        if self._connection is None:
            raise UsageError("this transaction is a session's: take tx.session.connection()")
        return self._connection

    def _check_open(self) -> None:
        if not self.is_open:
            raise UsageError("this transaction has ended: send within its `with` block")


class Transaction(_Block[Session, Connection]):
    """What `with mq.transaction() as tx` gives: its session or connection, and `send` into it."""

    @property
    def _source(self) -> Session | Connection:
        return self.session if self._connection is None else self._connection

    def send(self, topic: str, payload: Any, **options: Unpack[StubOptions]) -> str:
        """Send `payload` if and only if this transaction commits; return the message id.

        Args:
            topic: the topic; it is created at the broker when nobody has.
            payload: a pydantic model, dataclass, dict, list, str or bytes.
            tag: what consumers may filter by.
            key: the message key, to find the message by (an order number, say).
            ordering_key: messages with one ordering key are handled one at a time, in the order of
                their rows; a row is drawn when this is called, so lock what the key stands for
                before. With a delay a message keeps its delay, and later ones may overtake it.
            delay: deliver so much later than now; 0 or less is at once. To the millisecond by
                brokers with timers (ours, Apache's since 5.0), by the next longer delay level of
                others. What is beyond `timer_range_seconds` waits in the database before.
            deliver_at: deliver at this instant, instead of `delay`; needs a time zone. One that
                has passed is at once.
            properties: user properties.
            content_type: what bytes or a str are ("application/x-protobuf"); other payloads are
                JSON, and say which version of their schema (`reliable_mq.schema`).
            required_groups: the consumer groups that must have handled the message before it is
                confirmed. None: those that this application registered for the topic, or
                `mq.topic(…, groups=…)` named. Empty: the broker's acknowledgement confirms.
            message_id: 32 characters of a-z A-Z 0-9 _ - to use instead of a new time-ordered id.

        Only topic and payload must be given.

        Raises:
            MessageRefused: when the payload, the topic's name or another part cannot be sent. Tag
                and keys have 255 printable characters at most.
            UsageError: when both times are given. When a time does not read, has no time zone, or
                lies more than a hundred years ahead. When it is beyond `timer_range_seconds` and
                the message has an ordering key. When the id or a group's name is malformed. When
                the transaction is one of another database, or there is none (AUTOCOMMIT).
            ConfigurationError: when our table is missing in the database.
        """
        self._check_open()
        return self._outbox.write(self._source, topic, payload, **options)

    def send_many(
        self, topic: str, payloads: Iterable[Any], **options: Unpack[ManyOptions]
    ) -> list[str]:
        """Send every payload, as `send` does, in few statements; return the ids in order.

        Each option is a value for all of them, or a function that is given the payload:
        `tx.send_many("orders", placed, tag="paid", key=lambda order: order.id)`. A chosen
        `message_id` is always such a function.

        Raises:
            MessageRefused: see `send`; when one is refused, none was written.
            UsageError: the same.
            ConfigurationError: see `send`.
        """
        self._check_open()
        return self._outbox.write_many(self._source, topic, payloads, **options)


class AsyncTransaction(_Block[AsyncSession, AsyncConnection]):
    """What `async with mq.transaction() as tx` gives: a session, and `await tx.send(…)`."""

    def __init__(
        self,
        outbox: SqlOutbox,
        *,
        session: AsyncSession | None,
        connection: AsyncConnection | None,
    ) -> None:
        super().__init__(outbox, session=session, connection=connection)
        self._unawaited: set[SendAwaitable[Any]] = set()

    def send(
        self, topic: str, payload: Any, **options: Unpack[StubOptions]
    ) -> Coroutine[Any, Any, str]:
        """Send `payload` if and only if this transaction commits; see `Transaction.send`.

        To be awaited; a block with one that was not raises at its end and is rolled back.
        """
        return self._sending(lambda source: self._outbox.write(source, topic, payload, **options))

    def send_many(
        self, topic: str, payloads: Iterable[Any], **options: Unpack[ManyOptions]
    ) -> Coroutine[Any, Any, list[str]]:
        """Send every payload in few statements; see `Transaction.send_many`. To be awaited."""
        return self._sending(
            lambda source: self._outbox.write_many(source, topic, payloads, **options)
        )

    def _sending(self, write: Callable[[Session | Connection], T]) -> "SendAwaitable[T]":
        self._check_open()
        source = self.session if self._connection is None else self._connection
        return SendAwaitable(source.run_sync(write), self._unawaited)

    def check_sent(self) -> None:
        """Raise when a `send` of this block was never awaited.

        Raises:
            UsageError: one was not.
        """
        if self._unawaited:
            for each in list(self._unawaited):
                each.close()
            raise UsageError("tx.send(…) was not awaited in this block: write `await tx.send(…)`")


class SendAwaitable(Coroutine[Any, Any, T]):
    """A `send` on its way; knows whether anybody has awaited it."""

    def __init__(self, work: Coroutine[Any, Any, T], unawaited: "set[SendAwaitable[Any]]") -> None:
        self._work = work
        self._unawaited = unawaited
        unawaited.add(self)

    def __await__(self) -> Generator[Any, Any, T]:
        self._unawaited.discard(self)
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """Go on with it; what a task does."""
        self._unawaited.discard(self)
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Let it fail; what a task does."""
        self._unawaited.discard(self)
        return self._work.throw(*error)

    def close(self) -> None:
        """Let it be."""
        self._unawaited.discard(self)
        self._work.close()


class TransactionScope:
    """The block of `mq.transaction(…)`, for `with` and `async with`.

    Without a session it makes one, commits when the block ends well, rolls back when it raises,
    and closes it. With a session or a connection that is in no transaction it begins one and ends
    it the same way. One that is already in a transaction, or in a savepoint, it joins: who began
    that ends it. A query or an `add` begins one too, so after these the owner calls `commit()`, or
    puts all of it into `with session.begin():`. An error line tells of messages whose owner did
    neither.
    """

    def __init__(
        self,
        outbox: SqlOutbox,
        new_session: Callable[[], Session],
        new_async_session: Callable[[], AsyncSession],
        given: Source | None,
    ) -> None:
        self._outbox = outbox
        self._new_session = new_session
        self._new_async_session = new_async_session
        self._given = given
        self._joined = False
        self._block: Transaction | AsyncTransaction | None = None

    def __enter__(self) -> Transaction:
        given = self._given
        if isinstance(given, AsyncSession | AsyncConnection):
            kind, name = type(given).__name__, _argument(given)
            raise UsageError(f"an {kind} takes `async with mq.transaction({name})`")
        source = self._new_session() if given is None else given
        self._joined = source.in_transaction()
        if not self._joined:
            source.begin()
        if isinstance(source, Session):
            block = Transaction(self._outbox, session=source, connection=None)
        else:
            block = Transaction(self._outbox, session=None, connection=source)
        self._block = block
        return block

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        block = self._block
        if not isinstance(block, Transaction):
            raise InvariantBroken("a block ends as it began, with or without async")
        block.is_open = False
        if self._joined:
            return
        source = block._source
        try:
            if error is None:
                source.commit()
            else:
                source.rollback()
        except BaseException:
            source.rollback()
            raise
        finally:
            if self._given is None:
                source.close()

    async def __aenter__(self) -> AsyncTransaction:
        given = self._given
        if isinstance(given, Session | Connection):
            kind, name = type(given).__name__, _argument(given)
            raise UsageError(f"a {kind} takes `with mq.transaction({name})`, without async")
        source = self._new_async_session() if given is None else given
        self._joined = source.in_transaction()
        if not self._joined:
            await source.begin()
        if isinstance(source, AsyncSession):
            block = AsyncTransaction(self._outbox, session=source, connection=None)
        else:
            block = AsyncTransaction(self._outbox, session=None, connection=source)
        self._block = block
        return block

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        block = self._block
        if not isinstance(block, AsyncTransaction):
            raise InvariantBroken("a block ends as it began, with or without async")
        block.is_open = False
        source = block.session if block._connection is None else block._connection
        if self._joined:
            if error is None:
                block.check_sent()
            return
        try:
            if error is None:
                block.check_sent()
                await source.commit()
            else:
                await source.rollback()
        except BaseException:
            await source.rollback()
            raise
        finally:
            if self._given is None:
                await source.close()


def source_of(given: Given) -> Source:
    """Return what a block is to run on.

    Raises:
        UsageError: when it is none of what can be committed and rolled back.
    """
    if isinstance(given, scoped_session | async_scoped_session):
        given = given()  # the session of this thread or task
    if isinstance(given, Session | Connection | AsyncSession | AsyncConnection):
        return given
    raise UsageError(
        f"mq.transaction({type(given).__name__}): give a Session, AsyncSession, Connection or "
        "AsyncConnection, or nothing"
    )


def _argument(given: object) -> str:
    return "connection" if isinstance(given, Connection | AsyncConnection) else "session"
