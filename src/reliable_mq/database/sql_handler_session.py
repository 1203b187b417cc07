"""The session a handler gets: everything but the end of its transaction is the handler's.

The handler's effect and the row that says "consumed" are one commit (P4). A handler that commits
by itself would commit one without the other, so while it runs whatever ends the transaction raises:
the session's own verbs, a `COMMIT` of the connection below it, and one that is written as SQL.
What nobody can prevent is noticed afterwards: a rollback of the connection, a procedure with a
COMMIT in it, see `sql_probes`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import URL, Connection, Engine, PoolProxiedConnection, event
from sqlalchemy.engine import RootTransaction
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

from reliable_mq.database.sql_probes import is_plain, is_probe_there, set_probe, status_of
from reliable_mq.database.sql_types import MYSQL
from reliable_mq.errors import UsageError

_SESSION = "reliable_mq_session"
_running: ContextVar["HandlerSession | None"] = ContextVar("reliable_mq_handler", default=None)
_held: set["HandlerSession"] = set()  # while it is empty, no statement and no COMMIT is looked at
_BEFORE = r"(?:\s|/\*.*?\*/|--[^\n]*\n)*+"  # possessive: many comments are read once
_END = rf"{_BEFORE}(?:COMMIT|END|ABORT|ROLLBACK(?!\s+(?:\w+\s+)?TO\b))\b"
_ENDS = re.compile(_END, re.IGNORECASE | re.DOTALL)
# psycopg sends several statements at once, when they have no parameters.
_ENDS_LATER = re.compile(f";{_END}", re.IGNORECASE | re.DOTALL)
_NO_STATEMENT = re.compile(
    r"'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/", re.IGNORECASE | re.DOTALL
)
# What MySQL commits by itself before it does it ("Statements That Cause an Implicit Commit").
_END_ON_MYSQL = (
    rf"{_BEFORE}(?:COMMIT|ROLLBACK(?!\s+(?:\w+\s+)?TO\b)|BEGIN|START|STOP|XA"
    r"|(?:CREATE|DROP)(?!\s+TEMPORARY\b)|ALTER|RENAME|TRUNCATE|LOCK|UNLOCK"
    r"|GRANT|REVOKE|ANALYZE|OPTIMIZE|REPAIR|CHECK|CACHE|FLUSH|RESET|CHANGE|INSTALL|UNINSTALL"
    r"|SET\s+(?:(?:@@)?(?:SESSION|LOCAL)?[\s.]*AUTOCOMMIT|PASSWORD))\b"
)
_ENDS_ON_MYSQL = re.compile(_END_ON_MYSQL, re.IGNORECASE | re.DOTALL)
# aiomysql sends several statements at once, PyMySQL where its flags say so.
_ENDS_LATER_ON_MYSQL = re.compile(f";{_END_ON_MYSQL}", re.IGNORECASE | re.DOTALL)
_NO_STATEMENT_ON_MYSQL = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`|\#[^\n]*|--\s[^\n]*|/\*(?!!).*?\*/""",
    re.DOTALL,
)


class TransactionEnded(UsageError):
    """A statement of a handler ended its transaction; nobody can take back what was committed."""

    def __init__(self) -> None:
        super().__init__(
            "the handler's transaction was ended by one of its statements (a procedure that "
            "commits, SET autocommit, …): what it wrote before may be committed, what it wrote "
            "later is rolled back, and it is not called again by itself. Take the COMMIT out of "
            "that statement, and complete this effect by hand"
        )


class RunsAgain(Exception):
    """A batch shares the transaction, and a statement may end it; it was not executed.

    The rows of messages that were not begun stand in that transaction, and a COMMIT would make them
    true. Nothing has failed: the messages are run again, each behind its own row.
    """

    def __init__(self) -> None:
        super().__init__(
            "this statement may end the transaction, which several messages share. It is not "
            "executed now; the messages are run again one after another, and it is executed then"
        )


class HandlerSession(Session):
    """A session whose transaction cannot be ended while a handler has it.

    Invariant: inside `held` the transaction that was open at its begin is the only one, and none
    of it is committed.
    """

    is_held = False
    _ours: SessionTransaction | None = None  # what the handler must leave open
    _below: RootTransaction | None = None  # the same on the connection, once there is one
    _connection: Connection | None = None  # where that is
    _is_open: Callable[[], bool] | None = None  # what its driver keeps, see `sql_probes`
    _was_open = False  # the server said so when the handler got it
    _is_probed = False  # a savepoint of ours stands there, see `sql_probes`
    _ended: TransactionEnded | RunsAgain | None = None  # nothing more is executed, this is why
    is_shared = False  # the rows of messages stand in it whose handlers were not called yet
    had_probe = False  # something was executed of which nobody knew what it does
    is_committing = False  # from then on the row that says CONSUMED may be there with its effect

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the open transaction open while the block runs.

        Raises:
            UsageError: when the transaction did not survive the block; it must be rolled back.
        """
        self._ours, savepoint = self.get_transaction(), self.get_nested_transaction()
        was_held, self.is_held = self.is_held, True  # a function may be called in a handler
        _held.add(self)
        if self._is_open is not None and self._is_below_open() and not self._was_open:
            self._was_open = self._is_open()
        outer = _running.set(self)
        try:
            yield
        finally:
            _running.reset(outer)
            self.is_held = was_held
            if not was_held:
                _held.discard(self)
        if not (
            self._ours is not None
            and self.get_transaction() is self._ours
            and (savepoint is None or savepoint.is_active)
            and (self._below is None or self._below.is_active)
        ):
            raise _not_yours()

    def began(self, transaction: SessionTransaction, connection: Connection) -> None:
        """Note that the session's transaction has begun on its connection.

        Raises:
            UsageError: when it is a second one, after a handler ended the first.
        """
        if transaction is not self._ours:
            self.refuse_if_held()
        self._below = connection.get_transaction()
        self._connection = connection
        self._is_open = status_of(connection)
        self._was_open = self._is_open is not None and self._is_open()
        self._is_probed, self._ended = False, None
        connection.info[_SESSION] = self

    @property
    def has_lost_connection(self) -> bool:
        """Whether the transaction's connection is gone, and the transaction with it."""
        return self._connection is not None and self._connection.invalidated

    @property
    def is_in_doubt(self) -> bool:
        """Whether `look_back` has to ask the server, or knows what it said."""
        return self._is_probed or self._ended is not None or self._has_closed()

    def _has_closed(self) -> bool:
        """Say whether the server is in no transaction though nobody ended ours in SQLAlchemy."""
        return (
            self._was_open
            and self._is_open is not None
            and self._is_below_open()
            and not self._is_open()
        )

    def _is_below_open(self) -> bool:
        """Say whether SQLAlchemy takes the transaction for open, on a connection that is there."""
        below, connection = self._below, self._connection
        if below is None or connection is None or not below.is_active:
            return False
        return not (connection.closed or connection.invalidated)

    def is_on(self, connection: Connection) -> bool:
        """Say whether a handler's transaction is on a connection."""
        return self.is_held and connection is self._connection

    def before(self, statement: str) -> None:
        """See, before a handler's next statement, what the last one did to the transaction.

        Raises:
            TransactionEnded: it ended it.
        """
        if self.is_in_doubt:
            is_rollback = statement.lstrip()[:8].upper() == "ROLLBACK"
            self.look_back(undo=is_rollback)

    def probe(self, connection: Connection) -> None:
        """Set a savepoint before a statement of which nobody knows what it does.

        Not when the handler has ended its transaction in SQLAlchemy's sight: `held` refuses that.

        Raises:
            RunsAgain: the statement must not be executed where messages share the transaction.
        """
        if not self._is_below_open():
            return
        if self.is_shared:
            self._ended = RunsAgain()
            raise self._ended
        self.had_probe = True
        set_probe(connection)
        self._is_probed = True

    def look_back(self, *, undo: bool) -> None:
        """See whether the transaction is the one that the handler was given.

        Args:
            undo: also in a transaction that PostgreSQL has aborted, which is undone to our
                savepoint; without, it stays in doubt.

        Raises:
            TransactionEnded: it is not; its connection is dropped, with what the handler set on it.
            RunsAgain: this was raised before.
        """
        if self._ended is not None:  # and the handler, or what it called, took no notice
            raise self._ended
        if self._connection is None or not self._is_below_open():
            self._is_probed = False  # rolled back as a whole, and SQLAlchemy knows
            return
        is_ended = self._has_closed()
        if self._is_probed and not is_ended:
            is_there = is_probe_there(self._connection, undo=undo)
            self._is_probed = is_there is None and not undo
            is_ended = is_there is False
        if is_ended:
            self._is_probed = self._was_open = False
            self._connection.invalidate()
            self._ended = TransactionEnded()
            raise self._ended

    def cause_of(self, error: Exception) -> Exception:
        """Return why an attempt failed: by its error, or because its transaction had ended."""
        if self.is_in_doubt and not isinstance(error, TransactionEnded):
            try:
                self.look_back(undo=True)
            except (TransactionEnded, RunsAgain) as ended:
                return ended
        return error

    def refuse_if_held(self) -> None:
        """Raise when a handler has the session.

        Raises:
            UsageError: it has.
        """
        if self.is_held:
            raise _not_yours()

    def commit(self) -> None:
        """Commit, when no handler has the session."""
        self.refuse_if_held()
        self.is_committing, self._was_open = True, False
        super().commit()

    def rollback(self) -> None:
        """Roll back, when no handler has the session."""
        self.refuse_if_held()
        super().rollback()

    def close(self) -> None:
        """Close, when no handler has the session."""
        self.refuse_if_held()
        super().close()

    def reset(self) -> None:
        """Reset, when no handler has the session."""
        self.refuse_if_held()
        super().reset()

    def invalidate(self) -> None:
        """Drop the connections, when no handler has the session."""
        self.refuse_if_held()
        super().invalidate()


def refuse_second_transaction(url: URL) -> None:
    """Raise when a handler runs here whose own session leads to the same database.

    A second transaction beside its own is committed whatever becomes of the handler: its messages
    go out again with every attempt, under other ids. In SQLite it would wait for itself.

    Raises:
        UsageError: says what to write.
    """
    session = _running.get()
    if session is None or not session.is_held:  # a task that a handler left behind is no handler
        return
    theirs = session.get_bind().engine.url
    if (theirs.host, theirs.port, theirs.database) == (url.host, url.port, url.database):
        raise UsageError(
            "mq.transaction() inside a handler: take a `session: Session` (in an async def: an "
            "AsyncSession) and write mq.transaction(session), so that its messages are committed "
            "with the handler's effect"
        )


def _not_yours() -> UsageError:
    return UsageError("a handler must not commit or roll back its session; raise instead")


def hold_transactions_of(engine: Engine) -> None:
    """Let the connections of `engine` refuse a COMMIT while a handler has their session.

    At the dialect and not by events: an engine with one listener for statements or commits makes
    SQLAlchemy prepare every event of every statement, a tenth of what a transaction costs.
    """
    dialect = engine.dialect
    commit = dialect.do_commit
    execute, execute_plain = dialect.do_execute, dialect.do_execute_no_params
    execute_many = dialect.do_executemany

    def do_commit(connection: PoolProxiedConnection) -> None:
        if _is_held(connection):
            # SQLAlchemy takes the transaction for ended either way; so must the database, or what
            # is open there would be committed by the next one that gets the connection.
            dialect.do_rollback(connection)
            raise _not_yours()
        commit(connection)

    def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if _held:
            _check(statement, context, dialect.name)
        execute(cursor, statement, parameters, context)

    def do_execute_no_params(cursor: Any, statement: str, context: Any = None) -> None:
        if _held:
            _check(statement, context, dialect.name)
        execute_plain(cursor, statement, context)

    def do_executemany(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if _held:
            _check(statement, context, dialect.name)
        execute_many(cursor, statement, parameters, context)

    # Documented parts of a dialect, and of this engine's own one: no other engine is touched.
    dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]
    dialect.do_execute = do_execute  # type: ignore[method-assign]
    dialect.do_execute_no_params = do_execute_no_params  # type: ignore[method-assign]
    dialect.do_executemany = do_executemany  # type: ignore[method-assign]
    event.listen(engine, "reset", _let_go)


def _check(statement: str, context: Any, dialect: str) -> None:
    """Refuse a statement that ends the transaction of a handler; watch one that may.

    Raises:
        UsageError: the statement ends it, or an earlier one has.
    """
    if context is None:
        return
    connection = context.root_connection
    running = _running.get()
    if running is not None and running.is_on(connection):
        running.before(statement)
    if is_plain(statement, dialect) or not _is_held(connection):
        return
    if (_ends_on_mysql if dialect in MYSQL else _ends)(statement):
        raise _not_yours()
    connection.info[_SESSION].probe(connection)


def _ends(statement: str) -> bool:
    """Say whether a statement, or a later one of several, ends the transaction."""
    if _ENDS.match(statement):
        return True
    several = ";" in statement and _NO_STATEMENT.sub(" ", statement)
    return bool(several and _ENDS_LATER.search(several))


def _ends_on_mysql(statement: str) -> bool:
    """Say the same of MySQL, which commits before many statements by itself."""
    if _ENDS_ON_MYSQL.match(statement):
        return True
    several = ";" in statement and _NO_STATEMENT_ON_MYSQL.sub(" ", statement)
    return bool(several and _ENDS_LATER_ON_MYSQL.search(several))


def _is_held(connection: Connection | PoolProxiedConnection) -> bool:
    if not _held:
        return False
    try:
        session = connection.info.get(_SESSION)
    except NotImplementedError:  # what SQLAlchemy asks a server with before it is used
        return False
    return session is not None and session.is_held


def _let_go(_connection: object, record: ConnectionPoolEntry, _state: PoolResetState) -> None:
    """Forget whose transaction a connection was in that goes back to its pool."""
    record.info.pop(_SESSION, None)


@event.listens_for(HandlerSession, "after_begin")
def _on_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    if isinstance(session, HandlerSession) and transaction.parent is None:
        session.began(transaction, connection)
