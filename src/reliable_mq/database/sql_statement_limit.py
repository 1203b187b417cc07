"""Lets a database end the statements of one transaction that take too long.

PostgreSQL has a setting of the transaction. MySQL and MariaDB take the limit with each query, as
their settings are of the connection, which the application uses next. SQLite runs in this process:
it asks now and then whether to go on.
"""

import sqlite3
import time
from typing import Any
from weakref import ref

from sqlalchemy import Connection, event, text

_STEPS = 50_000
"""SQLite asks after so many steps: some milliseconds."""


def limit_statements(connection: Connection, seconds: float) -> None:
    """Let the statements of this transaction end after `seconds`.

    On MySQL and MariaDB only queries end: it is for transactions that read.
    """
    dialect = connection.dialect
    if dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL statement_timeout = {int(seconds * 1000)}"))
    elif dialect.name in ("mysql", "mariadb"):
        is_mariadb = bool(getattr(dialect, "is_mariadb", False))

        @event.listens_for(connection, "before_cursor_execute", retval=True)
        def _limited(*given: Any) -> tuple[str, Any]:
            return limited_query(given[2], seconds, is_mariadb=is_mariadb), given[3]

    elif dialect.name == "sqlite":
        _limit_sqlite(connection, seconds)


def limited_query(statement: str, seconds: float, *, is_mariadb: bool) -> str:
    """Return a query that MySQL or MariaDB ends after `seconds`; another statement as it is."""
    if not statement.startswith("SELECT"):
        return statement
    if is_mariadb:
        return f"SET STATEMENT max_statement_time={seconds:g} FOR {statement}"
    hint = f"/*+ MAX_EXECUTION_TIME({int(seconds * 1000)}) */"
    return f"SELECT {hint}{statement.removeprefix('SELECT')}"


def _limit_sqlite(connection: Connection, seconds: float) -> None:
    raw = connection.connection.dbapi_connection
    if not isinstance(raw, sqlite3.Connection):
        return
    ends = [time.monotonic() + seconds]
    asking = ref(connection)

    def is_late() -> bool:
        # The file stays open in the pool: its next user has no limit.
        own = asking()
        return own is not None and not own.closed and time.monotonic() > ends[0]

    def begin(*_: Any) -> None:
        ends[0] = time.monotonic() + seconds

    def end(*_: Any) -> None:
        raw.set_progress_handler(None, 0)

    raw.set_progress_handler(is_late, _STEPS)
    event.listen(connection, "before_cursor_execute", begin)
    event.listen(connection, "commit", end)
    event.listen(connection, "rollback", end)
