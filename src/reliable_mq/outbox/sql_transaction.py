"""`mq.transaction()`: the business transaction whose messages are stubs in the same commit.

Receives a session or a Core connection, or makes a session. Returns a block that sends messages in
its transaction. Never commits or rolls back a transaction that it did not begin.

The outbox (`SqlOutbox`) writes the stubs.
"""

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.database.sql_transactions import LOST
from reliable_mq.errors import InvariantBroken, UsageError
from reliable_mq.outbox.async_transaction import AsyncTransaction
from reliable_mq.outbox.calls_apart import innermost_call
from reliable_mq.outbox.message_options import ManyOptions, StubOptions
from reliable_mq.outbox.sql_outbox import HOLDS, SqlOutbox
from reliable_mq.outbox.transaction_block import (
    Source,
    TransactionBlock,
    argument_for,
    missing_attribute,
    refuse_commit,
    taken_back,
)
from reliable_mq.topic import Topic, name_of

T = TypeVar("T")


class Transaction(TransactionBlock[Session, Connection]):
    """The `tx` of `with mq.transaction() as tx`: its session or connection, and `send`."""

    def __init__(self, outbox: SqlOutbox, source: Session | Connection) -> None:
        self._outbox = outbox
        self._call = innermost_call()
        self._source = source
        self._session = source if isinstance(source, Session) else None
        self._connection = None if isinstance(source, Session) else source

    def send(self, topic: str | Topic[T], payload: T, **options: Unpack[StubOptions]) -> str:
        """Send `payload` if and only if this transaction commits; return the message id.

        Args:
            topic: the topic. If it does not exist, it is created at the broker. With a `Topic`, a
                type checker compares the payload with the type of its payloads.
            payload: a pydantic model, dataclass, msgspec Struct, dict, list, str or bytes.
            tag: a word by which consumers may filter.
            key: the message key, by which you find the message (an order number, say).
            ordering_key: messages with one ordering key are handled one at a time, in the order of
                their rows. The call draws the row number: lock what the key stands for before.
                A message with a delay keeps its delay, and later messages may overtake it.
            delay: deliver this much later than now; 0 or less is at once. Our broker keeps it to
                the millisecond, Apache's since 5.0 is about a second late. Older ones use the next
                longer delay level. A message beyond the setting `timer_range_seconds` first waits
                in the database.
            deliver_at: deliver at this instant, instead of `delay`; needs a time zone. An instant
                in the past is at once.
            properties: user properties.
            content_type: the media type of bytes or a str ("application/x-protobuf"). Other
                payloads are JSON, and carry their schema version (`reliable_mq.schema`).
            correlation_id: what all messages of one request have in common. You find them by it.
            required_groups: the message is confirmed when all these consumer groups have handled
                it. None: the groups that this application registered for the topic, or that
                `mq.topic(…, groups=…)` named. Empty: the broker's acknowledgement confirms.
            message_id: 32 characters of a-z A-Z 0-9 _ - to use instead of a new time-ordered id.

        Only topic and payload are required.

        Raises:
            MessageRefused: the payload, the topic's name or another part cannot be sent. Tag, keys
                and correlation id have at most 255 printable characters. The id is used already.
            UsageError: both times are given. A time cannot be read, has no time zone, or lies
                more than a hundred years ahead. A time is beyond `timer_range_seconds` and the
                message has an ordering key. The id or a group's name is malformed. The transaction
                belongs to another database, or there is none (AUTOCOMMIT).
            ConfigurationError: our table is missing in the database.
        """
        if not self.is_open or innermost_call() is not self._call:
            self._check_open()
        if isinstance(topic, Topic):
            topic = topic.name
        return self._outbox.write_stub(self._source, topic, payload, **options)

    def send_many(
        self, topic: str | Topic[T], payloads: Iterable[T], **options: Unpack[ManyOptions[T]]
    ) -> list[str]:
        """Send every payload, as `send` does, in few statements; return the ids in order.

        Each option is one value for all messages, or a function of the payload:
        `tx.send_many("orders", placed, tag="paid", key=lambda order: order.id)`. A chosen
        `message_id` must be a function.

        Raises:
            MessageRefused: see `send`. If one message is refused, none was written.
            UsageError: see `send`. None was written.
            ConfigurationError: see `send`.
        """
        self._check_open()
        return self._outbox.write_many(self._source, name_of(topic), payloads, **options)


class TransactionScope:
    """The block of `mq.transaction(…)`, for `with` and `async with`.

    Without a session, it makes one and begins a transaction. It commits when the block ends, rolls
    back when the block raises, and closes the session. With a session or connection outside a
    transaction, it begins one and ends it the same way. If a transaction or savepoint is already
    open, it joins: the caller that began the transaction ends it. A query or an `add` also begins
    a transaction. After these, call `commit()` yourself, or put everything into
    `with session.begin():`. An error line reports messages whose transaction never ended.
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
        self._block: Transaction | AsyncTransaction | None = None

    if not TYPE_CHECKING:  # a type checker must see that the attribute is missing

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def __enter__(self) -> Transaction:
        given = self._given
        if isinstance(given, AsyncSession | AsyncConnection):
            kind, name = type(given).__name__, argument_for(given)
            raise UsageError(f"an {kind} needs `async with mq.transaction({name})`")
        source = self._new_session() if given is None else given
        self._joined = source.in_transaction()
        if not self._joined:
            source.begin()
        if given is None and isinstance(source, Session):
            source.commit = refuse_commit  # type: ignore[method-assign]
            source.info[LOST] = 0
            self._outbox.begin_holding(source)
        self._block = block = Transaction(self._outbox, source)
        if block._call is not None:
            self._note_in_call(block, source)
        return block

    def _note_in_call(self, block: Transaction | AsyncTransaction, source: Source) -> None:
        call = block._call
        if call is not None and call.is_running:
            call.note(block, source, is_joined=self._joined)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        block = self._block
        if not isinstance(block, Transaction):
            raise InvariantBroken("a block must end as it began, with or without async")
        block.is_open = False
        if self._joined:
            return
        source = block._source
        vars(source).pop("commit", None)  # that of `refuse_commit`
        lost = source.info.pop(LOST, 0) if isinstance(source, Session) else 0
        try:
            if error is None and not lost:
                source.commit()
            else:
                source.rollback()
        except BaseException as failed:
            source.rollback()
            if isinstance(failed, DBAPIError):
                self._outbox.check_commit(failed)
            raise
        finally:
            if self._given is None:
                source.close()
                source.info.pop(HOLDS, None)
                vars(source).pop("connection", None)  # see `end_holding`
        if error is None and lost:
            raise taken_back(lost)

    async def __aenter__(self) -> AsyncTransaction:
        given = self._given
        if isinstance(given, Session | Connection):
            kind, name = type(given).__name__, argument_for(given)
            raise UsageError(f"a {kind} needs `with mq.transaction({name})`, without async")
        source = self._new_async_session() if given is None else given
        self._joined = source.in_transaction()
        if not self._joined:
            await source.begin()
        if isinstance(source, AsyncSession):
            if given is None:
                source.sync_session.commit = refuse_commit  # type: ignore[method-assign]
                source.sync_session.info[LOST] = 0
            block = AsyncTransaction(self._outbox, asyncio.Lock(), session=source, connection=None)
        else:
            block = AsyncTransaction(self._outbox, asyncio.Lock(), session=None, connection=source)
        self._block = block
        self._note_in_call(block, source)
        return block

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        block = self._block
        if not isinstance(block, AsyncTransaction):
            raise InvariantBroken("a block must end as it began, with or without async")
        source: Any = block._session if block._connection is None else block._connection
        if self._joined:
            await block.end()
            if error is None:
                block.check_sent()
            return
        lost = 0
        try:
            await block.end()
            if isinstance(source, AsyncSession):
                vars(source.sync_session).pop("commit", None)  # that of `refuse_commit`
                lost = source.sync_session.info.pop(LOST, 0)
            if error is None:
                block.check_sent()
            if error is None and not lost:
                await source.commit()
            else:
                await source.rollback()
        except BaseException:
            await block.end()  # a send still runs if this task was cancelled while it waited
            await source.rollback()
            raise
        finally:
            if self._given is None:
                await source.close()
        if error is None and lost:
            raise taken_back(lost)
