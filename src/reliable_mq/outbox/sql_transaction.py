"""`mq.transaction()`: the business transaction whose messages are stubs in the same commit.

Receives messages inside an SQLAlchemy session's transaction. Hands on their stubs: inserted at
once, so that a savepoint that is rolled back takes them along, and handed to the relay when the
session has committed. Refuses to decide over a transaction that somebody else began.
"""

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from reliable_mq.client.outgoing import check_message
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.message import new_message_id
from reliable_mq.outbox.delay import delay_level_of
from reliable_mq.outbox.payload import encode_payload
from reliable_mq.outbox.sql_same_database import SameDatabase
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub, message_of
from reliable_mq.sql_types import is_missing_table, missing_table_text

_PENDING = "reliable_mq.pending"
_ID_LENGTH = 32


class Handover(Protocol):
    """What takes committed stubs over: the relay's thread."""

    def hand(self, stubs: list[Stub], written: float) -> None:
        """Take stubs that were written at `written`; must not wait."""
        ...


class SqlOutbox:
    """Writes stubs into the transactions of sessions.

    Args:
        stubs: the table.
        relay: takes the stubs after the commit.
        owner: the relay's name in the table.
        lease: seconds for which a stub is the relay's alone.
        groups_of_topic: the consumer groups a message of a topic and tag must reach, when not
            told.
        clock: tells the time by which the rows are judged, seconds since the epoch.
    """

    def __init__(
        self,
        stubs: SqlStubs,
        relay: Handover,
        *,
        owner: str,
        lease: float,
        groups_of_topic: Callable[[str, str], tuple[str, ...]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._stubs = stubs
        self._same_database = SameDatabase(stubs.engine, stubs.table)
        self._relay = relay
        self._owner = owner
        self._lease = lease
        self._groups_of_topic = groups_of_topic
        self._clock = clock

    def write(
        self,
        session: Session,
        topic: str,
        payload: Any,
        *,
        tag: str = "",
        key: object = "",
        ordering_key: object = "",
        delay: timedelta | None = None,
        properties: Mapping[str, str] | None = None,
        required_groups: tuple[str, ...] | None = None,
        message_id: str = "",
    ) -> str:
        """Write one stub into the session's transaction and return its message id."""
        now = self._clock()
        body, content_type = encode_payload(payload)
        deliver_time = None
        if delay is not None:
            delay_level_of(delay.total_seconds())
            deliver_time = now + delay.total_seconds()
        if isinstance(required_groups, str):
            raise UsageError(f"required_groups={required_groups!r}: a tuple of names is needed")
        groups = self._groups_of_topic(topic, tag) if required_groups is None else required_groups
        stub = Stub(
            seq=0,
            message_id=checked_id(message_id) or fresh_message_id(now),
            topic=topic,
            content=body,
            tag=tag,
            message_key=_key_text(key),
            ordering_key=_key_text(ordering_key),
            content_type=content_type,
            properties=dict(properties or {}),
            required_groups=groups,
            deliver_time=deliver_time,
        )
        check_message(message_of(stub, 0))  # what cannot be sent is refused here, not later
        # The caller's changes first: whoever waits for a row of theirs gets a later stub, too, so
        # that stubs of one ordering key have the order of the business.
        session.flush()
        connection = session.connection()
        self._same_database.check(connection)
        try:
            (stub,) = self._stubs.write(connection, [stub], self._owner, now, self._lease)
        except DBAPIError as error:
            if is_missing_table(error):
                raise ConfigurationError(missing_table_text(self._stubs.table.name)) from error
            raise
        # Committed or not, gone with a savepoint or not: the relay reads it back before it sends.
        session.info.setdefault(_PENDING, []).append((self._relay, stub, now))
        return stub.message_id


def _key_text(key: object) -> str:
    return "" if key is None else str(key)


def fresh_message_id(now: float) -> str:
    """Return a new message id for the time `now`, seconds since the epoch."""
    return new_message_id(int(now * 1000), os.urandom(10))


def checked_id(message_id: str) -> str:
    """Return the id a user chose.

    Raises:
        UsageError: when it is not empty and not 32 characters long.
    """
    if message_id and len(message_id) != _ID_LENGTH:
        raise UsageError(f"message_id {message_id!r} must have {_ID_LENGTH} characters")
    return message_id


@event.listens_for(Session, "after_commit")
def _hand_over(session: Session) -> None:
    """Hand the stubs of a committed session to their relays, in the order of their rows."""
    if session.in_nested_transaction():  # a savepoint was released; nothing is committed yet
        return
    batches: dict[int, tuple[Handover, list[Stub], float]] = {}
    for relay, stub, written in session.info.pop(_PENDING, ()):
        batches.setdefault(id(relay), (relay, [], written))[1].append(stub)
    for relay, stubs, first_written in batches.values():
        relay.hand(stubs, first_written)


@event.listens_for(Session, "after_transaction_end")
def _forget(session: Session, transaction: SessionTransaction) -> None:
    """Forget the stubs of a transaction that ended without a commit."""
    if transaction.parent is None:
        session.info.pop(_PENDING, None)


class _Block:
    """Whether the block of a transaction still runs: after it nothing would be committed."""

    is_open = True

    def _check_open(self) -> None:
        if not self.is_open:
            raise UsageError("this transaction has ended: send within its `with` block")


class Transaction(_Block):
    """What `with mq.transaction() as tx` gives: the session, and `send` into its transaction."""

    def __init__(self, outbox: SqlOutbox, session: Session) -> None:
        self._outbox = outbox
        self.session = session

    def send(
        self,
        topic: str,
        payload: Any,
        *,
        tag: str = "",
        key: object = "",
        ordering_key: object = "",
        delay: timedelta | None = None,
        properties: Mapping[str, str] | None = None,
        required_groups: tuple[str, ...] | None = None,
        message_id: str = "",
    ) -> str:
        """Send `payload` if and only if this transaction commits; return the message id.

        Args:
            topic: the topic; it is created at the broker when nobody has.
            payload: a pydantic model, dataclass, dict, list, str or bytes.
            tag: what consumers may filter by.
            key: the message key, to find the message by (an order number, say).
            ordering_key: messages with one ordering key are handled one at a time and in order.
            delay: deliver so much later; rounded up to the broker's next delay level, 2 h at most.
            properties: user properties.
            required_groups: the consumer groups that must have handled the message before it is
                confirmed. None: those that this application registered for the topic, or
                `mq.topic(…, groups=…)` named. Empty: the broker's acknowledgement confirms.
            message_id: 32 characters to use instead of a new time-ordered id.

        Raises:
            MessageRefused: when the payload, the topic's name or another part cannot be sent.
            UsageError: when the delay is too long, the id malformed, or the session bound to
                another database than the application's.
            ConfigurationError: when our table is missing in the session's database.
        """
        self._check_open()
        return self._outbox.write(
            self.session,
            topic,
            payload,
            tag=tag,
            key=key,
            ordering_key=ordering_key,
            delay=delay,
            properties=properties,
            required_groups=required_groups,
            message_id=message_id,
        )


class AsyncTransaction(_Block):
    """What `async with mq.transaction() as tx` gives: an `AsyncSession`, and `await tx.send(…)`."""

    def __init__(self, outbox: SqlOutbox, session: AsyncSession) -> None:
        self._outbox = outbox
        self.session = session

    async def send(self, topic: str, payload: Any, **options: Any) -> str:
        """Send `payload` if and only if this transaction commits; see `Transaction.send`."""
        self._check_open()
        return await self.session.run_sync(
            lambda session: self._outbox.write(session, topic, payload, **options)
        )


class TransactionScope:
    """The block of `mq.transaction(…)`, for `with` and `async with`.

    Without a session it makes one, commits when the block ends well, rolls back when it raises,
    and closes it. With a session that is in no transaction it begins one and ends it the same way.
    With a session that is already in a transaction it joins: who began it commits it.
    """

    def __init__(
        self,
        outbox: SqlOutbox,
        new_session: Callable[[], Session],
        new_async_session: Callable[[], AsyncSession],
        session: Session | AsyncSession | None,
    ) -> None:
        self._outbox = outbox
        self._new_session = new_session
        self._new_async_session = new_async_session
        self._given = session
        self._session: Session | AsyncSession | None = None
        self._joined = False
        self._block: _Block | None = None

    def _end_block(self) -> None:
        if self._block is not None:
            self._block.is_open = False

    def __enter__(self) -> Transaction:
        if isinstance(self._given, AsyncSession):
            raise UsageError("an AsyncSession takes `async with mq.transaction(session)`")
        session = self._given or self._new_session()
        self._session = session
        self._joined = session.in_transaction()
        if not self._joined:
            session.begin()
        self._block = Transaction(self._outbox, session)
        return self._block

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_block()
        session = self._session
        assert isinstance(session, Session)
        if self._joined:
            return
        try:
            if error is None:
                session.commit()
            else:
                session.rollback()
        except BaseException:
            session.rollback()
            raise
        finally:
            if self._given is None:
                session.close()

    async def __aenter__(self) -> AsyncTransaction:
        if isinstance(self._given, Session):
            raise UsageError("a Session takes `with mq.transaction(session)`, without async")
        session = self._given or self._new_async_session()
        self._session = session
        self._joined = session.in_transaction()
        if not self._joined:
            await session.begin()
        self._block = AsyncTransaction(self._outbox, session)
        return self._block

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_block()
        session = self._session
        assert isinstance(session, AsyncSession)
        if self._joined:
            return
        try:
            if error is None:
                await session.commit()
            else:
                await session.rollback()
        except BaseException:
            await session.rollback()
            raise
        finally:
            if self._given is None:
                await session.close()
