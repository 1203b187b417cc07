"""The session of a handler: the handler may do everything with it except end its transaction.

The handler's effect and the row that says CONSUMED are one commit (P4). A handler's own commit
would commit one without the other. So while it runs, everything that ends the transaction raises:
the session's methods, a `COMMIT` of its connection, and a COMMIT that is written as SQL. What
cannot be prevented is detected afterwards: a rollback of the connection, a procedure that contains
a COMMIT.

The server is asked, because the text of a statement does not say what it does. A procedure may
commit; so may a prepared statement, a comment that MySQL executes, or a list of settings that
contains `autocommit`. So a statement that does not begin with a plain word is executed behind our
own savepoint. A server forgets savepoints with their transaction. If our savepoint can be released,
the transaction is the same one, even if another one has begun meanwhile. That costs two round
trips. Plain statements cost none, also behind a comment that every database ends at the same place.

Actions below SQLAlchemy are not visible here. But drivers keep the last transaction status that
the server sent, at no cost. It shows that no transaction is open, not that it is another one.
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

from reliable_mq.database import sql_chained_commits
from reliable_mq.database.ended_transactions import RunsAgain, TransactionEnded
from reliable_mq.database.sql_chained_commits import execute_on
from reliable_mq.database.sql_libpq import IDLE
from reliable_mq.database.sql_types import MYSQL, mysql_code_of, sqlstate_of
from reliable_mq.errors import UsageError

_BEFORE = r"(?:\s|/\*.*?\*/|--[^\n]*\n)*+"  # possessive quantifier: many comments are read once
_END = rf"{_BEFORE}(?:COMMIT|END|ABORT|ROLLBACK(?!\s+(?:\w+\s+)?TO\b))\b"
_ENDS = re.compile(_END, re.IGNORECASE | re.DOTALL)
# psycopg sends several statements at once if they have no parameters.
_ENDS_LATER = re.compile(f";{_END}", re.IGNORECASE | re.DOTALL)
_NO_STATEMENT = re.compile(
    r"'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/", re.IGNORECASE | re.DOTALL
)
# MySQL commits before these statements ("Statements That Cause an Implicit Commit").
_END_ON_MYSQL = (
    rf"{_BEFORE}(?:COMMIT|ROLLBACK(?!\s+(?:\w+\s+)?TO\b)|BEGIN|START|STOP|XA"
    r"|(?:CREATE|DROP)(?!\s+TEMPORARY\b)|ALTER|RENAME|TRUNCATE|LOCK|UNLOCK"
    r"|GRANT|REVOKE|ANALYZE|OPTIMIZE|REPAIR|CHECK|CACHE|FLUSH|RESET|CHANGE|INSTALL|UNINSTALL"
    r"|SET\s+(?:(?:@@)?(?:SESSION|LOCAL)?[\s.]*AUTOCOMMIT|PASSWORD))\b"
)
_ENDS_ON_MYSQL = re.compile(_END_ON_MYSQL, re.IGNORECASE | re.DOTALL)
# aiomysql sends several statements at once; PyMySQL does if its flags allow it.
_ENDS_LATER_ON_MYSQL = re.compile(f";{_END_ON_MYSQL}", re.IGNORECASE | re.DOTALL)
_NO_STATEMENT_ON_MYSQL = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`|\#[^\n]*|--\s[^\n]*|/\*(?!!).*?\*/""",
    re.DOTALL,
)
# A single statement with this beginning ends no transaction: the functions it calls must not.
_PLAIN = re.compile(
    r"[\s(]*(?:SELECT|INSERT|UPDATE|DELETE|MERGE|REPLACE|WITH|VALUES|SAVEPOINT|RELEASE"
    r"|ROLLBACK\s+(?:\w+\s+)?TO)\b",
    re.IGNORECASE,
)
# PostgreSQL refuses a COMMIT in every routine of a transaction, and its DDL commits nothing.
_PLAIN_ON_POSTGRESQL = re.compile(
    r"[\s(]*(?!(?:COMMIT|END|ABORT|ROLLBACK(?!\s+(?:\w+\s+)?TO\b)|PREPARE)\b)[a-z]", re.IGNORECASE
)
_COMMENT = re.compile(r"[\s(]*(/\*|--)")
_EXECUTED_COMMENTS = ("/*!", "/*M!")  # MySQL and MariaDB execute these


def is_plain(statement: str, dialect: str) -> bool:
    """Return whether a statement leaves its transaction open, whatever the database contains.

    Args:
        statement: the text that the driver gets.
        dialect: SQLAlchemy's name of the database's dialect.
    """
    plain = _PLAIN_ON_POSTGRESQL if dialect == "postgresql" else _PLAIN
    return bool(
        (plain.match(statement) or plain.match(statement, _after_comments(statement)))
        and ";" not in statement
        and ("/*" not in statement or not any(each in statement for each in _EXECUTED_COMMENTS))
    )


def _after_comments(statement: str) -> int:
    """Return where the first word after leading comments may begin. Reads each character once.

    A comment that databases end at different places is not skipped: PostgreSQL nests comments, and
    ends `--` comments at a carriage return; the others do neither.
    """
    place = 0
    while comment := _COMMENT.match(statement, place):
        end = "*/" if comment[1] == "/*" else "\n"
        stop = statement.find(end, comment.end())
        said = statement[comment.end() : stop].removesuffix("\r")
        if stop < 0 or "/*" in said or (end == "\n" and "\r" in said):
            break
        place = stop + len(end)
    return place


def ends(statement: str) -> bool:
    """Return whether a statement, or a later one of several, ends the transaction."""
    if _ENDS.match(statement):
        return True
    several = ";" in statement and _NO_STATEMENT.sub(" ", statement)
    return bool(several and _ENDS_LATER.search(several))


def ends_on_mysql(statement: str) -> bool:
    """Return the same for MySQL, which commits before many statements by itself."""
    if _ENDS_ON_MYSQL.match(statement):
        return True
    several = ";" in statement and _NO_STATEMENT_ON_MYSQL.sub(" ", statement)
    return bool(several and _ENDS_LATER_ON_MYSQL.search(several))


_PROBE = "reliable_mq_probe"
_IN_TRANSACTION, _AUTOCOMMIT = 1, 2  # the protocol's SERVER_STATUS_IN_TRANS, …_AUTOCOMMIT
_NO_SUCH_SAVEPOINT_ON_MYSQL = 1305
_NO_SUCH_SAVEPOINT = ("3B001", "25P01")  # 25P01: no transaction is open
_ABORTED = "25P02"  # PostgreSQL executes nothing but a rollback


def status_of(connection: Connection) -> Callable[[], bool] | None:
    """Return a function: whether the server's last answer reported an open transaction.

    It reads the status that the driver keeps. None: this driver keeps none.
    """
    driver: Any = connection.connection.driver_connection
    match connection.dialect.driver:
        case "psycopg" | "psycopg_async":
            libpq = driver.pgconn
            return lambda: bool(libpq.transaction_status != IDLE)
        case "psycopg2":
            return lambda: bool(driver.get_transaction_status() != IDLE)
        case "asyncpg":
            return lambda: bool(driver.is_in_transaction())
        case "pymysql" | "aiomysql":
            both = _IN_TRANSACTION | _AUTOCOMMIT
            return lambda: bool(driver.server_status & both == _IN_TRANSACTION)
        case "pysqlite" | "aiosqlite":
            return lambda: bool(driver.in_transaction)
    return None


def set_probe(connection: Connection) -> None:
    """Set the savepoint that the next statement must leave in place."""
    _execute(connection, f"SAVEPOINT {_PROBE}")


def is_probe_there(connection: Connection, *, undo: bool) -> bool | None:
    """Return whether the savepoint still exists, and remove it; None: this is unknown now.

    Args:
        connection: where it was set.
        undo: if PostgreSQL has aborted the transaction, roll back to the savepoint.
    """
    try:
        _execute(connection, f"RELEASE SAVEPOINT {_PROBE}")
    except connection.dialect.loaded_dbapi.Error as error:
        if _is_missing(error):
            return False
        if sqlstate_of(error) != _ABORTED:
            return None
    else:
        return True
    if not undo:
        return None
    try:
        _execute(connection, f"ROLLBACK TO SAVEPOINT {_PROBE}")
    except connection.dialect.loaded_dbapi.Error as error:
        return False if _is_missing(error) else None
    return True


def _is_missing(error: BaseException) -> bool:
    if mysql_code_of(error) == _NO_SUCH_SAVEPOINT_ON_MYSQL:
        return True
    return sqlstate_of(error) in _NO_SUCH_SAVEPOINT or "no such savepoint" in str(error)


def _execute(connection: Connection, statement: str) -> None:
    """Execute a statement without SQLAlchemy, which may be executing another one now."""
    execute_on(connection.connection, statement)


_SESSION = "reliable_mq_session"
_running: ContextVar["HandlerSession | None"] = ContextVar("reliable_mq_handler", default=None)
running_session = _running.get
"""Returns the session of the handler that runs here, or None."""
_begins_next: ContextVar[PoolProxiedConnection | None]  # the connection whose COMMIT does it
_begins_next = ContextVar("reliable_mq_begins_next", default=None)
_held: set["HandlerSession"] = set()  # while it is empty, no statement and no COMMIT is checked


class HandlerSession(Session):
    """A session whose transaction cannot be ended while it is held for a handler.

    Invariant S5: inside `held`, the transaction that was open at the beginning is the only one, and
    nothing of it is committed.
    """

    is_held = False
    _ours: SessionTransaction | None = None  # the handler must leave it open
    _below: RootTransaction | None = None  # the same on the connection, once there is one
    _connection: Connection | None = None  # the connection of that transaction
    _is_open: Callable[[], bool] | None = None  # reads the driver's status
    _was_open = False  # the server reported an open transaction when the handler began
    _is_probed = False  # our savepoint is set
    _ended: TransactionEnded | RunsAgain | None = None  # the reason why nothing more is executed
    is_shared = False  # the transaction has rows of messages whose handlers have not begun
    had_probe = False  # a statement with an unknown effect on the transaction was executed
    is_committing = False  # from then on, the row may be CONSUMED together with its effect

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the open transaction open while the block runs.

        Raises:
            UsageError: the block ended the transaction; the caller must roll back.
        """
        self._ours, savepoint = self.get_transaction(), self.get_nested_transaction()
        was_held, self.is_held = self.is_held, True  # a handler may call a keyed function
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
            UsageError: it is a second one, after a handler ended the first.
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
        """Whether the transaction's connection is lost, and so the transaction."""
        return self._connection is not None and self._connection.invalidated

    @property
    def is_in_doubt(self) -> bool:
        """Whether `check_transaction` has to ask the server, or already knows the answer."""
        return self._is_probed or self._ended is not None or self._has_closed()

    def _has_closed(self) -> bool:
        """Return: the server has no open transaction, though SQLAlchemy did not end ours."""
        return (
            self._was_open
            and self._is_open is not None
            and self._is_below_open()
            and not self._is_open()
        )

    def _is_below_open(self) -> bool:
        """Return: for SQLAlchemy the transaction is open, on a live connection."""
        below, connection = self._below, self._connection
        if below is None or connection is None or not below.is_active:
            return False
        return not (connection.closed or connection.invalidated)

    def check_below(self, statement: str) -> None:
        """Check a statement that reaches the held connection without SQLAlchemy.

        Raises:
            UsageError: the statement ends the transaction, or an earlier one has ended it.
        """
        if self.is_held and self._connection is not None:
            check_statement(statement, self._connection, self._connection.dialect.name)

    def is_on(self, connection: Connection) -> bool:
        """Return whether a handler's transaction is on a connection."""
        return self.is_held and connection is self._connection

    def before(self, statement: str) -> None:
        """Check before a handler's next statement what the last one did to the transaction.

        Raises:
            TransactionEnded: the last statement ended the transaction.
        """
        if self.is_in_doubt:
            is_rollback = statement.lstrip()[:8].upper() == "ROLLBACK"
            self.check_transaction(undo=is_rollback)

    def probe(self, connection: Connection) -> None:
        """Set a savepoint before a statement whose effect on the transaction is unknown.

        Does nothing if the handler has ended the transaction through SQLAlchemy: `held` detects it.

        Raises:
            RunsAgain: messages share the transaction, so the statement must not be executed.
        """
        if not self._is_below_open():
            return
        if self.is_shared:
            self._ended = RunsAgain()
            raise self._ended
        self.had_probe = True
        set_probe(connection)
        self._is_probed = True

    def check_transaction(self, *, undo: bool) -> None:
        """Check that the handler's transaction is still the same one.

        Args:
            undo: if PostgreSQL has aborted the transaction, roll back to our savepoint and check.
                Without it, an aborted transaction stays in doubt.

        Raises:
            TransactionEnded: it is another one. Its connection is dropped with all changes on it.
            RunsAgain: it was raised before.
        """
        if self._ended is not None:  # the handler, or a function it called, ignored the error
            raise self._ended
        if self._connection is None or not self._is_below_open():
            self._is_probed = False  # rolled back as a whole, as SQLAlchemy knows
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
        """Return why an attempt failed: its error, or the end of its transaction before."""
        if self.is_in_doubt and not isinstance(error, TransactionEnded):
            try:
                self.check_transaction(undo=True)
            except (TransactionEnded, RunsAgain) as ended:
                return ended
        return error

    def refuse_if_held(self, verb: str = "commit or roll back") -> None:
        """Check that no handler holds the session.

        Args:
            verb: what the handler is about to do with it.

        Raises:
            UsageError: a handler holds it.
        """
        if self.is_held:
            raise _not_yours(verb)

    def commit(self) -> None:
        """Commit, if no handler holds the session."""
        self.refuse_if_held()
        self.is_committing, self._was_open = True, False
        super().commit()

    def commit_and_begin(self) -> None:
        """Commit. On PostgreSQL 15 and newer the next transaction of the connection begins with it.

        That saves its BEGIN. The caller uses the connection for it at once, or gives it back.
        """
        ours = None if self._connection is None else self._connection.connection
        chained = _begins_next.set(ours)
        try:
            self.commit()
        finally:
            _begins_next.reset(chained)

    def rollback(self) -> None:
        """Roll back, if no handler holds the session."""
        self.refuse_if_held()
        super().rollback()

    def close(self) -> None:
        """Close, if no handler holds the session."""
        self.refuse_if_held("close")
        super().close()
        self._ours = None  # it refers to this session: a circle, which only a collection would free

    def reset(self) -> None:
        """Reset, if no handler holds the session."""
        self.refuse_if_held("reset")
        super().reset()

    def invalidate(self) -> None:
        """Drop the connections, if no handler holds the session."""
        self.refuse_if_held("invalidate")
        super().invalidate()


def refuse_second_transaction(url: URL) -> None:
    """Refuse a transaction if a handler runs here whose session uses the same database.

    A second transaction would commit even if the handler failed: each attempt would send its
    messages again, under new ids. In SQLite it would wait for itself.

    Raises:
        UsageError: says what to write instead.
    """
    session = _running.get()
    if session is None or not session.is_held:  # a task that outlives its handler is no handler
        return
    theirs = session.get_bind().engine.url
    if (theirs.host, theirs.port, theirs.database) == (url.host, url.port, url.database):
        raise UsageError(
            "mq.transaction() inside a handler: add a parameter `session: Session` (in an async "
            "def: AsyncSession) and write mq.transaction(session), so that its messages are "
            "committed with the handler's effect"
        )


def _not_yours(verb: str = "commit or roll back") -> UsageError:
    return UsageError(
        f"a handler must not {verb} its session: that is done when it has returned; to undo its"
        " effect, raise"
    )


def hold_transactions_of(engine: Engine) -> None:
    """Make the connections of `engine` refuse a COMMIT while a handler holds their session.

    This changes the dialect instead of using events. With one listener for statements or commits,
    SQLAlchemy prepares every event of every statement: a tenth of a transaction's cost.
    """
    dialect = engine.dialect
    commit = dialect.do_commit
    execute, execute_plain = dialect.do_execute, dialect.do_execute_no_params
    execute_many = dialect.do_executemany

    def do_commit(connection: PoolProxiedConnection) -> None:
        if _is_held(connection):
            # SQLAlchemy treats the transaction as ended either way. The database must do the same:
            # otherwise the next user of the connection would commit what is open.
            dialect.do_rollback(connection)
            raise _not_yours()
        # Listeners of a commit may commit other connections, perhaps without a transaction.
        if _begins_next.get() is connection and sql_chained_commits.can_chain(dialect):
            sql_chained_commits.commit_and_chain(connection)
        else:
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

    # These are documented parts of a dialect. The dialect belongs to this engine alone.
    dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]
    dialect.do_execute = do_execute  # type: ignore[method-assign]
    dialect.do_execute_no_params = do_execute_no_params  # type: ignore[method-assign]
    dialect.do_executemany = do_executemany  # type: ignore[method-assign]
    event.listen(engine, "reset", _let_go)


def _check(statement: str, context: Any, dialect: str) -> None:
    if context is not None:
        check_statement(statement, context.root_connection, dialect)


def check_statement(statement: str, connection: Connection, dialect: str) -> None:
    """Refuse a statement that ends a handler's transaction; set a probe for one that may end it.

    Raises:
        UsageError: the statement ends it, or an earlier one has ended it.
    """
    running = _running.get()
    if running is not None and running.is_on(connection):
        running.before(statement)
    if is_plain(statement, dialect) or not _is_held(connection):
        return
    if (ends_on_mysql if dialect in MYSQL else ends)(statement):
        raise _not_yours()
    connection.info[_SESSION].probe(connection)


def _is_held(connection: Connection | PoolProxiedConnection) -> bool:
    if not _held:
        return False
    try:
        session = connection.info.get(_SESSION)
    except NotImplementedError:  # SQLAlchemy's first questions to a new server
        return False
    return session is not None and session.is_held


def _let_go(_connection: object, record: ConnectionPoolEntry, _state: PoolResetState) -> None:
    """Forget the session of a connection that returns to its pool."""
    record.info.pop(_SESSION, None)


@event.listens_for(HandlerSession, "after_begin")
def _on_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    if isinstance(session, HandlerSession) and transaction.parent is None:
        session.began(transaction, connection)
