"""What a transaction does on our engines and on callers': its begin, its checks, its commit.

Before a message is written, its connection is checked: is it ours, can it roll back, do its
savepoints hold?

**Ours.** Rows that are written into another database are never found. Equal URLs settle the
question. Two spellings of one server (a name and an address, a pooler, a search path) do not.
Then the databases themselves are asked, once for each engine.

**AUTOCOMMIT.** The isolation level that SQLAlchemy was given is checked first, then the level that
its dialect reads from the driver's connection. Without an answer, the server is asked. A driver's
attribute alone is no answer: each driver names it differently, and asyncpg has none.

**Savepoints of SQLite.** By default Python's sqlite3 begins a transaction before an INSERT, not
before a SAVEPOINT. SQLite treats a savepoint outside of a transaction as the begin of one, and its
RELEASE as the COMMIT. So messages would be sent even if the transaction around them failed.
Therefore an engine is changed when it first carries a message. From then on, a transaction is begun
before its first savepoint. A transaction that was already open may have begun with a savepoint:
while it has messages, its savepoints are not released, and the COMMIT takes all of them.

**Commit.** Committed stubs go to their relay when the driver's COMMIT on their connection has
returned. This module wraps the dialect's `do_commit`: sessions, Core connections, sessions inside a
connection's transaction and two-phase commits all end there. SQLAlchemy's events do not fit. A
connection's "commit" event comes before the COMMIT. A session inside a connection's transaction
calls `after_commit` before anything is committed. A handover is a hint, not a fact: the relay reads
the stubs back before it sends them. So stubs that a savepoint rolled back do no harm. After an
unanswered COMMIT, stubs are handed over, too.
"""

import logging
import re
import sqlite3
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

from sqlalchemy import Connection, Dialect, Engine, PoolProxiedConnection, Table, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

from reliable_mq.database.sql_faults import drop_lost_transactions
from reliable_mq.database.sql_places import place_of
from reliable_mq.database.sql_types import ANY_TEXT, MYSQL, READS_ONLY, any_text, dialect_family
from reliable_mq.errors import UsageError

log = logging.getLogger(__name__)

_BUSY_TIMEOUT_MS = 10_000
_PENDING = "reliable_mq.pending"
_ROLLED_BACK = "reliable_mq.rolled_back"
_WRITTEN = "reliable_mq.written"

_lock = threading.Lock()
_watched: WeakSet[Dialect] = WeakSet()

_ASKS = "reliable_mq_asks"
_BEGUN_IN_SIGHT = "reliable_mq.begun_in_sight"
# Possessive quantifier: a statement with many comments is read once.
_SAVEPOINT = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*+(SAVEPOINT|RELEASE)\b", re.IGNORECASE | re.DOTALL
)
# The server's start time in microseconds identifies it without any privilege. The table's number
# distinguishes schemas of one database.
_IDENTITY = text("SELECT pg_postmaster_start_time(), current_database(), to_regclass(:table)::oid")
# Every MySQL server has a number, old MariaDB has none; host, port and files identify those.
_MYSQL_IDENTITY = text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('server_uuid', 'server_uid', 'server_id', 'hostname', 'port', 'socket', 'datadir')"
)


class SameDatabase:
    """Knows which engines connect to our database."""

    def __init__(self, engine: Engine, table: Table) -> None:
        self._ours = engine
        self._table = table
        self._known: WeakSet[Engine] = WeakSet((engine,))

    def check(self, connection: Connection) -> bool:
        """Return whether the connection's engine was not seen before.

        Raises:
            UsageError: it connects to another database than ours; names both.
        """
        if connection.engine in self._known:
            return False
        if not self._is_ours(connection):
            theirs = connection.engine.url
            raise UsageError(
                f"the transaction is bound to {theirs.render_as_string()}, but this application's "
                f"database is {self._ours.url.render_as_string()}: a message written there would "
                "never be sent. Use a session or connection of this database, name the other one "
                "by mq.transaction(…, database=…), or use a ReliableMQ of that database"
            )
        if connection.dialect.name in MYSQL:
            drop_lost_transactions(connection.engine)
        self._known.add(connection.engine)
        return True

    def _is_ours(self, connection: Connection) -> bool:
        theirs, ours = connection.engine.url, self._ours.url
        if place_of(theirs) == place_of(ours):
            return True
        if dialect_family(theirs.get_backend_name()) != dialect_family(ours.get_backend_name()):
            return False
        if connection.dialect.name == "sqlite":
            return False
        name = {"table": self._table.name}
        with self._ours.connect() as own:
            return _identity(connection, name) == _identity(own, name)


def _identity(connection: Connection, name: dict[str, str]) -> tuple[Any, ...]:
    if dialect_family(connection.dialect.name) == "mysql":
        server = sorted(map(tuple, connection.execute(_MYSQL_IDENTITY)))
        return (server, connection.execute(text("SELECT database()")).scalar_one())
    return tuple(connection.execute(_IDENTITY, name).one())


def is_autocommit(connection: Connection) -> bool:
    """Return whether each statement on a connection is its own transaction."""
    if _has_autocommit_option(connection):
        return True
    if connection.dialect.name == "sqlite":
        return not _is_open_or_begins(connection)
    detect = getattr(connection.dialect, "detect_autocommit_setting", None)  # SQLAlchemy 2.0.43
    if detect is not None:
        try:
            return bool(detect(connection.connection.dbapi_connection))
        except NotImplementedError:
            pass
    return _asked_of_server(connection)


def _has_autocommit_option(connection: Connection) -> bool:
    level = connection.get_execution_options().get("isolation_level")
    if level is None:  # the level of `create_engine(isolation_level=…)`
        level = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return level == "AUTOCOMMIT"


def _is_open_or_begins(connection: Connection) -> bool:
    """Return, for SQLite, whether a transaction is open or the next INSERT begins one."""
    driver: Any = connection.connection.driver_connection
    # aiosqlite shows only some attributes of its sqlite3 connection, not this one of Python 3.12.
    below = getattr(driver, "_conn", driver)
    if getattr(below, "autocommit", None) is True:  # in this mode a commit does nothing
        return False
    return bool(driver.in_transaction) or driver.isolation_level is not None


def _asked_of_server(connection: Connection) -> bool:
    if dialect_family(connection.dialect.name) == "mysql":
        return bool(connection.exec_driver_sql("SELECT @@autocommit").scalar_one())
    try:
        connection.exec_driver_sql(f"SAVEPOINT {_ASKS}")
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return True  # PostgreSQL allows it only within a transaction
    connection.exec_driver_sql(f"RELEASE SAVEPOINT {_ASKS}")
    return False


def keep_savepoints(engine: Engine) -> None:
    """Make an SQLite engine keep what a savepoint wrote until the COMMIT.

    Call it once for each engine.
    """
    dialect = engine.dialect
    begin = dialect.do_begin
    execute, execute_plain = dialect.do_execute, dialect.do_execute_no_params

    def do_begin(connection: PoolProxiedConnection) -> None:
        connection.info[_BEGUN_IN_SIGHT] = True
        begin(connection)

    def is_left_out(cursor: Any, statement: str, context: Any) -> bool:
        word = _SAVEPOINT.match(statement)
        if word is None or context is None:
            return False
        connection: Connection = context.root_connection
        if word[1].upper() == "RELEASE":
            return has_pending(connection) and _BEGUN_IN_SIGHT not in connection.info
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction and driver.isolation_level is not None:
            execute_plain(cursor, "BEGIN")
        return False

    def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if not is_left_out(cursor, statement, context):
            execute(cursor, statement, parameters, context)

    def do_execute_no_params(cursor: Any, statement: str, context: Any = None) -> None:
        if not is_left_out(cursor, statement, context):
            execute_plain(cursor, statement, context)

    # These are documented parts of a dialect. The dialect belongs to this engine alone.
    dialect.do_begin = do_begin  # type: ignore[method-assign, assignment]
    dialect.do_execute = do_execute  # type: ignore[method-assign]
    dialect.do_execute_no_params = do_execute_no_params  # type: ignore[method-assign]


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
        cursor.execute("PRAGMA journal_mode = WAL")
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
            connection.exec_driver_sql("BEGIN IMMEDIATE")


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
    connection.info.setdefault(_PENDING, []).append((relay, stubs))
    # A session inside a connection's transaction neither commits it nor forgets to commit it.
    if isinstance(source, Session) and not isinstance(source.bind, Connection):
        source.info[_WRITTEN] = source.info.get(_WRITTEN, 0) + len(stubs)


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
    if lost and not was_meant:
        _log_forgotten(lost, "session")


@event.listens_for(Session, "after_rollback")
def _on_session_rollback(session: Session) -> None:
    """Note that the session's transaction, or a part of it, was rolled back on purpose."""
    if session.info.get(_WRITTEN):
        session.info[_ROLLED_BACK] = True


def _log_forgotten(lost: int, kind: str) -> None:
    if sys.exc_info()[0] is None:  # a propagating exception explains the rollback
        log.error(
            "%d message(s) were written into a transaction that was closed without commit and are "
            "lost with it; the %s was in a transaction before mq.transaction(%s) joined it, so its "
            "owner must call commit()",
            *(lost, kind, kind),
        )
