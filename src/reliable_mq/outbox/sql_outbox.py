"""The outbox of one database: it writes stubs into the transactions of sessions and connections.

Receives what an application sends, and composes stubs of it. The relay gets them after the commit.
The last stubs of a session that `mq.transaction()` made may wait for the COMMIT (`HeldStubs`).
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Unpack

from msgspec.structs import replace
from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError, IntegrityError, UnboundExecutionError
from sqlalchemy.orm import Session

from reliable_mq.database.sql_caller_connections import SameDatabase, is_autocommit, keep_savepoints
from reliable_mq.database.sql_faults import is_right_missing
from reliable_mq.database.sql_libpq import held_on, hold, insert_held
from reliable_mq.database.sql_prepared import WithCommit
from reliable_mq.database.sql_transactions import (
    Handover,
    count_written,
    remember_pending,
    remember_stubs,
    watch,
)
from reliable_mq.database.sql_types import is_missing_table, missing_table_text
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.limits import TIMER_SECONDS_MAX
from reliable_mq.outbox.cloud_events import Envelope
from reliable_mq.outbox.composing import Composer, RandomBytes, ids_used
from reliable_mq.outbox.message_options import ManyOptions, StubOptions
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.sql_unowned import announce
from reliable_mq.outbox.stub import Stub

HELD_MAX = 256
HELD_SIZE_MAX = 256 * 1024
"""The most stubs, and bytes of their content, that wait."""
HOLDS = "reliable_mq.holds_stubs"

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
    session.info[HOLDS] = True
    session.connection = partial(_shown, session)  # type: ignore[method-assign]


def end_holding(session: Session) -> None:
    """Let no more stubs of a session wait. It loses its reference to itself, which frees it."""
    if session.info.pop(HOLDS, False):
        vars(session).pop("connection", None)


def may_hold(session: Session, stub: Stub) -> bool:
    """Return whether a stub may wait: it has no time, and no key whose order it would miss."""
    return (
        HOLDS in session.info
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
        if "message_id" in options or not self._hold(source, connection, stub, now):
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
        if HOLDS in source.info:
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
