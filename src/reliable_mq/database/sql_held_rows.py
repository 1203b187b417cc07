"""A change that waits for the next statement of its transaction, or for its COMMIT.

What is written directly before a COMMIT can reach the database together with it: that saves a round
trip. Every other statement on the connection executes the change first, so it finds what the change
has written. A rollback forgets it. Does not know what the change is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, PoolProxiedConnection

_HELD = "reliable_mq.held_rows"


class HeldRows(Protocol):
    """Rows of one transaction that are not written, or not changed, yet."""

    @property
    def pending(self) -> tuple[Any, list[Any]] | None:
        """Who gets stubs after the COMMIT, and the stubs; see `sql_transactions`."""
        ...

    def insert(self) -> None:
        """Write the rows into their transaction."""
        ...

    def commit(self, commit: Callable[[], None]) -> None:
        """Write the rows and commit; `commit` sends a COMMIT alone."""
        ...


def hold(connection: Connection, rows: HeldRows) -> None:
    """Let rows wait for the next statement on a connection, or for its COMMIT."""
    connection.info[_HELD] = rows


def held_on(connection: Connection | PoolProxiedConnection) -> Any:
    """Return the rows that wait on a connection, or None."""
    try:
        return connection.info.get(_HELD)
    except NotImplementedError:  # SQLAlchemy's first questions to a new server
        return None


def insert_held(connection: Connection) -> None:
    """Write the rows that wait on a connection, if there are any.

    Raises what their statement raises.
    """
    rows = taken(connection)
    if rows is not None:
        rows.insert()


def taken(connection: Connection | PoolProxiedConnection) -> HeldRows | None:
    """Return the rows that wait on a connection, or None; they wait no more."""
    try:
        rows: HeldRows | None = connection.info.pop(_HELD, None)
    except NotImplementedError:
        return None
    return rows


def execute_held_of(engine: Engine) -> None:
    """Write what waits on connections of an engine: before other statements, or with a COMMIT."""
    dialect = engine.dialect
    execute, execute_plain = dialect.do_execute, dialect.do_execute_no_params
    execute_many = dialect.do_executemany
    commit, rollback = dialect.do_commit, dialect.do_rollback

    def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if context is not None:
            insert_held(context.root_connection)
        execute(cursor, statement, parameters, context)

    def do_execute_no_params(cursor: Any, statement: str, context: Any = None) -> None:
        if context is not None:
            insert_held(context.root_connection)
        execute_plain(cursor, statement, context)

    def do_executemany(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if context is not None:
            insert_held(context.root_connection)
        execute_many(cursor, statement, parameters, context)

    def do_commit(connection: PoolProxiedConnection) -> None:
        rows = taken(connection)
        if rows is None:
            commit(connection)
        else:
            rows.commit(partial(commit, connection))

    def do_rollback(connection: PoolProxiedConnection) -> None:
        taken(connection)
        rollback(connection)

    # These are documented parts of a dialect. The dialect belongs to this engine alone.
    dialect.do_execute = do_execute  # type: ignore[method-assign]
    dialect.do_execute_no_params = do_execute_no_params  # type: ignore[method-assign]
    dialect.do_executemany = do_executemany  # type: ignore[method-assign]
    dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]
    dialect.do_rollback = do_rollback  # type: ignore[method-assign, assignment]
