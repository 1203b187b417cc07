"""How a transaction begins on our SQLite, and what happens with its stubs at its end.

Committed stubs go to their relay when the driver's COMMIT on their connection has returned. This
module wraps the dialect's `do_commit`: sessions, Core connections, sessions inside a connection's
transaction and two-phase commits all end there. SQLAlchemy's events do not fit. A connection's
"commit" event comes before the COMMIT. A session inside a connection's transaction calls
`after_commit` before anything is committed. A handover is a hint, not a fact: the relay reads the
stubs back before it sends them. So stubs that a savepoint rolled back do no harm. After an
unanswered COMMIT, stubs are handed over, too.
"""

import asyncio
import logging
import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

from sqlalchemy import Connection, Dialect, Engine, PoolProxiedConnection, event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState
from tenacity import Retrying, retry_if_exception_message, stop_after_delay, wait_random

from reliable_mq.database.sql_libpq import HELD
from reliable_mq.database.sql_types import ANY_TEXT, READS_ONLY, any_text
from reliable_mq.errors import UsageError
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

_BUSY_TIMEOUT_MS = 10_000
_LOCKED_WAIT_SECONDS = 0.05
_PENDING = "reliable_mq.pending"
_ROLLED_BACK = "reliable_mq.rolled_back"
_WRITTEN = "reliable_mq.written"
LOST = "reliable_mq.lost"
"""In `Session.info`: count lost messages here, in place of an error line; its block tells them."""

_NEWEST = "reliable_mq.newest_writer"

_lock = threading.Lock()
_watched: WeakSet[Dialect] = WeakSet()


def make_sqlite_durable(engine: Engine) -> None:
    """Let SQLite begin transactions where SQLAlchemy does, and sync what it commits.

    The driver's own BEGIN comes too late for savepoints. IMMEDIATE takes the write lock at the
    start. Otherwise a transaction that reads first and writes later fails if another one wrote in
    between. Our transactions always write.
    """

    @event.listens_for(engine, "connect")
    def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        use_write_ahead_log(cursor)
        cursor.execute("PRAGMA synchronous = FULL")  # a commit survives the loss of power
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Any) -> None:
        options = connection.get_execution_options()
        factory = any_text if ANY_TEXT.items() <= options.items() else str
        driver = connection.connection.driver_connection
        if driver.text_factory is not factory:
            driver.text_factory = factory
        if not READS_ONLY.items() <= options.items():
            _begin_writing(connection)

    @event.listens_for(engine, "close")
    def _on_close(connection: Any, _record: object) -> None:
        # SQLAlchemy closes the connection of a cancelled or interrupted statement without a
        # rollback. SQLite then keeps the write lock until nothing refers to the cursor any more,
        # and the traceback of the cancellation does.
        try:
            with suppress(Exception):  # a closed connection has nothing to roll back
                connection.rollback()
        except asyncio.CancelledError:  # the connection must be closed all the same
            if (task := asyncio.current_task()) is not None:
                task.cancel()
                if task.cancelling() > 1:  # it was asked for once
                    task.uncancel()


class _Writer:
    """A transaction: its file, the thread and task that began it, and its connection."""

    def __init__(self, connection: Connection) -> None:
        self.place = (connection.engine.url.database, *_here())
        self._driver: Any = connection.connection.driver_connection
        self._info = connection.connection.info  # of the driver's connection, as long as it lives
        self._info[_NEWEST] = self

    @property
    def is_open(self) -> bool:
        """Whether the transaction has not ended: its connection has no newer one."""
        try:
            return self._info.get(_NEWEST) is self and bool(self._driver.in_transaction)
        except (sqlite3.Error, ValueError):  # it is closed
            return False


_begun: ContextVar[tuple[_Writer, ...]] = ContextVar("writers", default=())


def _begin_writing(connection: Connection) -> None:
    """Begin a transaction of SQLite that writes.

    A file has one writer. A second writing transaction of the same thread and task would wait until
    the first one has ended, and that could not end meanwhile. Who waits for others is served: so a
    transaction counts only where its own context has begun it.

    Raises:
        UsageError: another one is open where this one begins.
    """
    others = [each for each in _begun.get() if each.is_open]
    own = _Writer(connection)
    if any(each.place == own.place for each in others):
        raise UsageError(
            "a transaction inside another one of the same SQLite file would wait for itself: use "
            "the session of the outer one, mq.transaction(tx.session), or let it end first"
        )
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    _begun.set((*others, own))


def _here() -> tuple[int, int, int]:
    """Return the process, the thread and the task; a forked child waits for its parent."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return os.getpid(), threading.get_ident(), id(task)


def use_write_ahead_log(cursor: Any) -> None:
    """Let the SQLite file of this cursor have a write-ahead log. It must not be in a transaction.

    Two connections that change the mode of a new file at once lock each other. SQLite sees that,
    so it does not wait for its `busy_timeout`: one of the two fails at once. It tries again here.

    Raises:
        OperationalError: the file has been locked for ten seconds. The driver's own class.
    """
    for attempt in Retrying(
        retry=retry_if_exception_message(match="database is locked"),
        wait=wait_random(0, _LOCKED_WAIT_SECONDS),
        stop=stop_after_delay(_BUSY_TIMEOUT_MS / 1000),
        reraise=True,
    ):
        with attempt:
            cursor.execute("PRAGMA journal_mode = WAL")


class Handover(Protocol):
    """Receives committed stubs: the relay's thread."""

    @property
    def accept_committed(self) -> Callable[[list[Any]], None]:
        """Accepts stubs in the order of their rows; must not wait."""
        ...


@runtime_checkable
class RollbackListener(Protocol):
    """Receives stubs whose transaction was rolled back before any commit was tried."""

    def accept_rolled_back(self, stubs: list[Any]) -> None:
        """Accept stubs that were rolled back; must not wait."""
        ...


def remember_stubs(
    source: Session | Connection,
    connection: Connection,
    relay: Handover,
    stubs: list[Any],
) -> None:
    """Remember stubs that were just written on a connection, until its transaction ends."""
    remember_pending(connection, relay, stubs)
    count_written(source, len(stubs))


def remember_pending(connection: Connection, relay: Handover, stubs: list[Any]) -> None:
    """Remember stubs for their relay, until the transaction of their connection ends."""
    connection.info.setdefault(_PENDING, []).append((relay, stubs))


def count_written(source: Session | Connection, count: int) -> None:
    """Note how many messages a session has written, to say how many it has lost."""
    # A session inside a connection's transaction neither commits it nor forgets to commit it.
    if isinstance(source, Session) and not isinstance(source.bind, Connection):
        source.info[_WRITTEN] = source.info.get(_WRITTEN, 0) + count


def has_pending(connection: Connection) -> bool:
    """Return whether messages were written in the connection's open transaction."""
    return bool(connection.info.get(_PENDING))


def watch(engine: Engine) -> bool:
    """Observe commits and rollbacks of an engine's connections; False: it was already observed."""
    dialect = engine.dialect
    with _lock:
        if dialect in _watched:
            return False
        _watched.add(dialect)
    commit, rollback = dialect.do_commit, dialect.do_rollback
    commit_prepared = dialect.do_commit_twophase

    def do_commit(dbapi_connection: Any) -> None:
        pending = _taken(dbapi_connection)
        try:
            commit(dbapi_connection)
        finally:
            if pending:
                _hand_over(pending)

    def do_commit_twophase(connection: Connection, *given: Any, **named: Any) -> None:
        pending = _taken(connection.connection)
        try:
            commit_prepared(connection, *given, **named)
        finally:
            if pending:
                _hand_over(pending)

    def do_rollback(dbapi_connection: Any) -> None:
        pending = _taken(dbapi_connection)
        if pending:
            lost = sum(len(stubs) for _, stubs in pending)
            dbapi_connection.info[_ROLLED_BACK] = lost
        try:
            rollback(dbapi_connection)
        finally:
            if pending:
                _notify_rolled_back(pending)

    # These are documented parts of a dialect. The dialect belongs to this engine alone.
    dialect.do_commit = do_commit  # type: ignore[method-assign]
    dialect.do_commit_twophase = do_commit_twophase  # type: ignore[method-assign]
    dialect.do_rollback = do_rollback  # type: ignore[method-assign]
    event.listen(engine, "reset", _on_reset)
    return True


def _taken(dbapi_connection: Any) -> list[tuple[Handover, list[Any]]]:
    """Return what a connection's transaction has written, and forget it."""
    if not isinstance(dbapi_connection, PoolProxiedConnection):
        return []
    try:
        info = dbapi_connection.info
    except NotImplementedError:  # SQLAlchemy's first questions to a new server
        return []
    info.pop(_ROLLED_BACK, None)
    pending: list[tuple[Handover, list[Any]]] = info.pop(_PENDING, [])
    held = info.get(HELD)
    if held is not None and held.pending is not None:
        pending.append(held.pending)
    return pending


def _hand_over(pending: list[tuple[Handover, list[Any]]]) -> None:
    """Hand stubs to their relays, in the order of their rows."""
    batches: dict[int, tuple[Handover, list[Any]]] = {}
    for relay, stubs in pending:
        batches.setdefault(id(relay), (relay, []))[1].extend(stubs)
    for relay, together in batches.values():
        relay.accept_committed(together)


def _notify_rolled_back(pending: list[tuple[Handover, list[Any]]]) -> None:
    for relay, stubs in pending:
        if isinstance(relay, RollbackListener):
            relay.accept_rolled_back(stubs)


def _on_reset(
    _connection: object, record: ConnectionPoolEntry, reset_state: PoolResetState
) -> None:
    """Report stubs that were lost: a connection was closed without commit or rollback."""
    lost = record.info.pop(_ROLLED_BACK, 0)
    if lost and reset_state.transaction_was_reset:
        _log_forgotten(lost, "connection")


@event.listens_for(Session, "after_commit")
def _on_session_commit(session: Session) -> None:
    if not session.in_nested_transaction():  # the release of a savepoint commits nothing
        session.info.pop(_WRITTEN, None)


@event.listens_for(Session, "after_transaction_end")
def _on_session_end(session: Session, transaction: SessionTransaction) -> None:
    """Report stubs that were lost: a session was closed without commit or rollback."""
    if transaction.parent is not None:
        return
    lost = session.info.pop(_WRITTEN, 0)
    was_meant = session.info.pop(_ROLLED_BACK, False)
    if LOST in session.info:
        session.info[LOST] += lost
    elif lost and not was_meant:
        _log_forgotten(lost, "session")


@event.listens_for(Session, "after_rollback")
def _on_session_rollback(session: Session) -> None:
    """Note that the session's transaction, or a part of it, was rolled back on purpose."""
    if session.info.get(_WRITTEN):
        session.info[_ROLLED_BACK] = True


def _log_forgotten(lost: int, kind: str) -> None:
    if sys.exc_info()[0] is None:  # a propagating exception explains the rollback
        application_events.MESSAGES_FORGOTTEN.log(log, messages=lost, kind=kind)
