"""`mq.transaction()`: the business transaction whose messages are stubs in the same commit.

Receives a session or a Core connection, or makes a session. Returns a block that sends messages in
its transaction. Never commits or rolls back a transaction that it did not begin.

The outbox (`SqlOutbox`) writes the stubs. A session that was made here may let the last ones wait
for the COMMIT.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from msgspec.structs import replace
from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError, IntegrityError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.database.sql_caller_connections import SameDatabase, is_autocommit, keep_savepoints
from reliable_mq.database.sql_faults import is_right_missing
from reliable_mq.database.sql_libpq import held_on, hold, insert_held
from reliable_mq.database.sql_prepared import WithCommit
from reliable_mq.database.sql_transactions import (
    LOST,
    Handover,
    count_written,
    remember_pending,
    remember_stubs,
    watch,
)
from reliable_mq.database.sql_types import is_missing_table, missing_table_text
from reliable_mq.errors import ConfigurationError, InvariantBroken, UsageError
from reliable_mq.limits import TIMER_SECONDS_MAX
from reliable_mq.outbox.async_transaction import AsyncTransaction
from reliable_mq.outbox.calls_apart import innermost_call
from reliable_mq.outbox.cloud_events import Envelope
from reliable_mq.outbox.composing import Composer, RandomBytes, ids_used
from reliable_mq.outbox.message_options import ManyOptions, StubOptions
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.sql_unowned import announce
from reliable_mq.outbox.stub import Stub
from reliable_mq.outbox.transaction_block import (
    Source,
    TransactionBlock,
    argument_for,
    missing_attribute,
    refuse_commit,
    taken_back,
)
from reliable_mq.topic import Topic, name_of

HELD_MAX = 256
HELD_SIZE_MAX = 256 * 1024
"""The most stubs, and bytes of their content, that wait."""
_HOLDS = "reliable_mq.holds_stubs"

Write = Callable[[Connection, list[Stub], float], list[Stub]]
"""Inserts stubs at a time; returns them as they are in the table."""


class HeldStubs:
    """The stubs of one transaction that wait.

    Args:
        connection: where they will be written.
        relay: gets them after the COMMIT.
        first: inserts the first one, and commits.
        write: inserts several.
        commits_first: use `first`; otherwise all are written before the COMMIT.
    """

    def __init__(
        self,
        connection: Connection,
        relay: Handover,
        first: WithCommit,
        write: Write,
        *,
        commits_first: bool,
    ) -> None:
        self._connection = connection
        self._relay = relay
        self._first = first
        self._write = write
        self._commits_first = commits_first
        self._stubs: list[Stub] = []
        self._size = 0
        self._now = 0.0

    def add(self, stub: Stub, now: float) -> None:
        """Let one more stub wait, written at `now`."""
        self._stubs.append(replace(stub, create_time=now))
        self._size += len(stub.content)
        self._now = now

    @property
    def is_full(self) -> bool:
        """Whether no more stubs should wait."""
        return len(self._stubs) >= HELD_MAX or self._size > HELD_SIZE_MAX

    @property
    def pending(self) -> tuple[Handover, list[Stub]]:
        """The relay, and the stubs that it gets. Without a number: they have no ordering key."""
        return self._relay, self._stubs

    def insert(self) -> None:
        """Insert the stubs. Raises RolledBackBelow."""
        self._first.check()
        written = self._write(self._connection, self._stubs, self._now)
        remember_pending(self._connection, self._relay, written)

    def commit(self, commit: Callable[[], None]) -> None:
        """Insert the stubs and commit; `commit` sends a COMMIT alone.

        Raises RolledBackBelow.
        """
        if self._commits_first and len(self._stubs) == 1:
            self._first.commit()
        else:
            self._first.check()
            self._write(self._connection, self._stubs, self._now)
            commit()


def begin_holding(session: Session) -> None:
    """Let stubs of a new session wait, until somebody asks for its connection."""
    if session.dispatch.after_begin:  # listeners get the connection
        return
    session.info[_HOLDS] = True
    session.connection = partial(_shown, session)  # type: ignore[method-assign]


def end_holding(session: Session) -> None:
    """Let no more stubs of a session wait. It loses its reference to itself, which frees it."""
    if session.info.pop(_HOLDS, False):
        vars(session).pop("connection", None)


def may_hold(session: Session, stub: Stub) -> bool:
    """Return whether a stub may wait: it has no time, and no key whose order it would miss."""
    return (
        _HOLDS in session.info
        and not stub.ordering_key
        and stub.deliver_time is None
        and not session.in_nested_transaction()
        and len(stub.content) <= HELD_SIZE_MAX
    )


def connection_of(session: Session, table: Table) -> Connection:
    """Return the connection of a session for a table, which nobody else gets by that."""
    return type(session).connection(session, bind_arguments={"clause": table})


def _shown(session: Session, *given: Any, **named: Any) -> Connection:
    """Return the connection of a session to the application. From now on no stub waits."""
    end_holding(session)
    connection = session.connection(*given, **named)
    insert_held(connection)
    return connection


class SqlOutbox:
    """Writes stubs into the transactions of sessions and connections.

    Args:
        stubs: the table.
        relay: receives the stubs after the commit.
        owner: the relay's name in the table. None: any relay of the database sends the stubs, and
            is informed of the commit if the database supports that.
        lease: seconds for which only the relay, or the shared relays, may send a stub.
        groups_of_topic: returns the consumer groups that a message of a topic and tag must reach,
            if the caller does not name them.
        clock: returns the time for the rows, in seconds since the epoch; may ask the database on
            the connection that the stub is then written on.
        random_bytes: returns this number of random bytes.
        timer_range: how far ahead brokers accept a message's time, in seconds.
        known_groups: earlier answers of `groups_of_topic`, see `Composer`.
        envelopes: the envelopes of topics that have one.
    """

    _may_hold = True

    def __init__(
        self,
        stubs: SqlStubs,
        relay: Handover,
        *,
        owner: str | None,
        lease: float,
        groups_of_topic: Callable[[str, str], tuple[str, ...]],
        clock: Callable[[Connection], float] = lambda _connection: time.time(),
        random_bytes: RandomBytes = os.urandom,
        timer_range: float = TIMER_SECONDS_MAX,
        known_groups: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType({}),
        envelopes: Mapping[str, Envelope] = MappingProxyType({}),
    ) -> None:
        self._stubs = stubs
        self._same_database = SameDatabase(stubs.engine, stubs.table)
        self._relay = relay
        self._owner = owner
        self._lease = lease
        self._timer_range = timer_range
        self._composer = Composer(
            groups_of_topic, random_bytes, timer_range, known_groups, envelopes
        )
        self._clock = clock
        watch(stubs.engine)

    def write_stub(
        self,
        source: Session | Connection,
        topic: str,
        payload: Any,
        **options: Unpack[StubOptions],
    ) -> str:
        """Write one stub into the transaction; return its message id."""
        connection = self._connection_of(source)
        now = self._clock(connection)
        stub = self._composer.stub(now, topic, payload, **options)
        if not ("message_id" not in options and self._hold(source, connection, stub, now)):
            self._insert(source, connection, [stub], now)
        return stub.message_id

    def write_many(
        self,
        source: Session | Connection,
        topic: str,
        payloads: Iterable[Any],
        **options: Unpack[ManyOptions[Any]],
    ) -> list[str]:
        """Write a stub for each payload into the transaction; return their message ids in order.

        If one is refused, all are refused and nothing was written.
        """
        connection = self._connection_of(source)
        now = self._clock(connection)
        stubs = self._composer.stubs(now, topic, payloads, options)
        if stubs:
            self._insert(source, connection, stubs, now)
        return [stub.message_id for stub in stubs]

    def begin_holding(self, session: Session) -> None:
        """Let stubs of a new session of ours wait for its next statement, where that is allowed."""
        if self._may_hold and self._stubs.engine.dialect.driver == "psycopg":
            begin_holding(session)

    def _hold(
        self, source: Session | Connection, connection: Connection, stub: Stub, now: float
    ) -> bool:
        """Let a stub wait for the next statement or the COMMIT; False: it must be written now."""
        if not isinstance(source, Session) or not may_hold(source, stub):
            return False
        execution = self._stubs.insert_with_commit(connection, stub, self._owner, now, self._lease)
        if execution is None:
            return False
        held = held_on(connection)
        if held is None:
            is_announced = self._owner is None
            held = HeldStubs(
                *(connection, self._relay, execution, self.write_held),
                commits_first=not is_announced,
            )
            hold(connection, held)
        held.add(stub, now)
        count_written(source, 1)
        if held.is_full:
            insert_held(connection)
        return True

    def write_held(self, connection: Connection, stubs: list[Stub], now: float) -> list[Stub]:
        """Insert stubs that were held; return them as they are in the table."""
        try:
            written = self._stubs.insert(connection, stubs, self._owner, now, self._lease)
        except DBAPIError as error:
            self._not_inserted(stubs, now, error)
            raise
        if self._owner is None:
            announce(connection, self._stubs.table)
        return written

    def _insert(
        self, source: Session | Connection, connection: Connection, stubs: list[Stub], now: float
    ) -> None:
        if _HOLDS in source.info:
            insert_held(connection)  # the rows have the order of the sends
        self._before_insert(connection, stubs)
        try:
            written = self._stubs.insert(connection, stubs, self._owner, now, self._lease)
            latest = now + self._timer_range
            dues = {}
            for stub in written:
                if stub.deliver_time is not None and stub.deliver_time > latest:
                    dues[stub.seq] = stub.deliver_time - self._timer_range
            if dues:
                self._stubs.leave_until(connection, dues)
        except DBAPIError as error:
            self._not_inserted(stubs, now, error)
            raise
        if self._owner is None:
            announce(connection, self._stubs.table)
        # Committed or rolled back with a savepoint: the relay reads it back before it sends.
        remember_stubs(source, connection, self._relay, written)

    def _before_insert(self, connection: Connection, stubs: Sequence[Stub]) -> None:
        """Do what must happen before stubs are inserted, in the caller's transaction."""

    def _not_inserted(self, stubs: Sequence[Stub], now: float, error: DBAPIError) -> None:  # noqa: ARG002
        """Raise a clearer error than `error`, if there is one: stubs of `now` were not inserted."""
        self.check_tables(error)
        if isinstance(error, IntegrityError) and "message_id" in str(error.orig):
            raise ids_used(stubs) from error

    def check_commit(self, error: DBAPIError) -> None:
        """Raise what `check_tables` raises, if a COMMIT has failed at a stub that it took along.

        Other errors at the end of a block are about statements and tables of the application.
        """
        if error.statement is None and self._stubs.table.name in str(error.orig):
            self.check_tables(error)

    def check_tables(self, error: DBAPIError) -> None:
        """Raise a clearer error than `error` if our table is missing; note a missing right.

        Raises:
            ConfigurationError: the table is missing.
        """
        if is_missing_table(error):
            table = self._stubs.table
            raise ConfigurationError(missing_table_text(table.name, table.metadata)) from error
        if is_right_missing(error):
            error.add_note("reliable-mq doctor prints the GRANT that this account lacks")

    def _connection_of(self, source: Session | Connection) -> Connection:
        """Return the connection for the stubs, after the caller's changes were flushed to it.

        A transaction that waits for one of these rows gets a later stub, too. So stubs of one
        ordering key have the order of the business.

        Raises:
            UsageError: it leads to another database, or to no transaction. None of the caller's
                changes was written.
        """
        connection = source if isinstance(source, Connection) else self._below(source)
        is_new = self._same_database.check(connection) and watch(connection.engine)
        if is_new and connection.dialect.name == "sqlite":
            keep_savepoints(connection.engine)
        if is_autocommit(connection):
            raise UsageError(
                "this connection is in AUTOCOMMIT: a rollback would not take a message back; use "
                "an engine or a connection without that isolation level"
            )
        if isinstance(source, Session):
            source.flush()
        return connection

    def _below(self, source: Session) -> Connection:
        try:
            return connection_of(source, self._stubs.table)
        except UnboundExecutionError as error:
            raise UsageError(
                "the session is bound table by table and knows no engine for "
                f"{self._stubs.table.name}: add `binds={{mq.database.stubs: engine}}`"
            ) from error


T = TypeVar("T")


class Transaction(TransactionBlock[Session, Connection]):
    """The `tx` of `with mq.transaction() as tx`: its session or connection, and `send`."""

    def __init__(self, outbox: "SqlOutbox", source: Session | Connection) -> None:
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
            payload: a pydantic model, dataclass, dict, list, str or bytes.
            tag: a word by which consumers may filter.
            key: the message key, by which you find the message (an order number, say).
            ordering_key: messages with one ordering key are handled one at a time, in the order of
                their rows. The call draws the row number: lock what the key stands for before.
                A message with a delay keeps its delay, and later messages may overtake it.
            delay: deliver this much later than now; 0 or less is at once. Brokers with timers
                (ours, Apache's since 5.0) keep it to the millisecond. Other brokers use the next
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
        outbox: "SqlOutbox",
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
                source.info.pop(_HOLDS, None)
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
