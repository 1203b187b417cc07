"""The session a handler gets: everything but the end of its transaction is the handler's.

The handler's effect and the row that says "consumed" are one commit (P4). A handler that commits
by itself would commit one without the other, so while it runs whatever ends the transaction raises:
the session's own verbs, a `COMMIT` of the connection below it, and one that is written as SQL.
What nobody can prevent, a rollback of the connection, is noticed afterwards.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import URL, Connection, Engine, PoolProxiedConnection, event
from sqlalchemy.engine import RootTransaction
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

from reliable_mq.errors import UsageError
from reliable_mq.sql_types import MYSQL

_SESSION = "reliable_mq_session"
_running: ContextVar["HandlerSession | None"] = ContextVar("reliable_mq_handler", default=None)
_BEFORE = r"(?:\s|/\*.*?\*/|--[^\n]*\n)*"
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


class HandlerSession(Session):
    """A session whose transaction cannot be ended while a handler has it.

    Invariant: inside `held` the transaction that was open at its begin is the only one, and none
    of it is committed.
    """

    is_held = False
    _ours: SessionTransaction | None = None  # what the handler must leave open
    _below: RootTransaction | None = None  # the same on the connection, once there is one

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the open transaction open while the block runs.

        Raises:
            UsageError: when the transaction did not survive the block; it must be rolled back.
        """
        self._ours, savepoint = self.get_transaction(), self.get_nested_transaction()
        was_held, self.is_held = self.is_held, True  # a function may be called in a handler
        outer = _running.set(self)
        try:
            yield
        finally:
            _running.reset(outer)
            self.is_held = was_held
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
        connection.info[_SESSION] = self

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
    ends = _ends_on_mysql if dialect.name in MYSQL else _ends

    def do_commit(connection: PoolProxiedConnection) -> None:
        if _is_held(connection):
            # SQLAlchemy takes the transaction for ended either way; so must the database, or what
            # is open there would be committed by the next one that gets the connection.
            dialect.do_rollback(connection)
            raise _not_yours()
        commit(connection)

    def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if ends(statement) and context is not None and _is_held(context.root_connection):
            raise _not_yours()
        execute(cursor, statement, parameters, context)

    def do_execute_no_params(cursor: Any, statement: str, context: Any = None) -> None:
        if ends(statement) and context is not None and _is_held(context.root_connection):
            raise _not_yours()
        execute_plain(cursor, statement, context)

    # Documented parts of a dialect, and of this engine's own one: no other engine is touched.
    dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]
    dialect.do_execute = do_execute  # type: ignore[method-assign]
    dialect.do_execute_no_params = do_execute_no_params  # type: ignore[method-assign]
    event.listen(engine, "reset", _let_go)


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
    session = connection.info.get(_SESSION)
    return session is not None and session.is_held


def _let_go(_connection: object, record: ConnectionPoolEntry, _state: PoolResetState) -> None:
    """Forget whose transaction a connection was in that goes back to its pool."""
    record.info.pop(_SESSION, None)


@event.listens_for(HandlerSession, "after_begin")
def _on_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    if isinstance(session, HandlerSession) and transaction.parent is None:
        session.began(transaction, connection)
