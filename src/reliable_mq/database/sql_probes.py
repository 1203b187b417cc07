"""Is a handler's transaction, after its statements, the one it was given? The server is asked.

A text does not tell what a statement does: a procedure may commit, so may a prepared statement, a
comment that MySQL executes, a list of settings with `autocommit` in it. A statement that does not
begin with a plain word is executed behind a savepoint of ours. A server forgets savepoints with
their transaction, so whether ours can be released says whether the transaction is the same one,
also where another one has begun meanwhile. That costs two round trips; plain statements cost none,
also behind a comment that every database ends at the same place.

What is done below SQLAlchemy is not seen here. Drivers keep what the server said last of the
transaction, which costs no round trip either: it shows that none is open, not that it is another.
"""

import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from reliable_mq.database.sql_types import mysql_code_of, sqlstate_of

_PROBE = "reliable_mq_probe"
# One statement that begins so ends no transaction: what it calls are functions, which must not.
_PLAIN = re.compile(
    r"[\s(]*(?:SELECT|INSERT|UPDATE|DELETE|MERGE|REPLACE|WITH|VALUES|SAVEPOINT|RELEASE"
    r"|ROLLBACK\s+(?:\w+\s+)?TO)\b",
    re.IGNORECASE,
)
# PostgreSQL refuses a COMMIT in whatever a transaction calls, and DDL commits nothing there.
_PLAIN_ON_POSTGRESQL = re.compile(
    r"[\s(]*(?!(?:COMMIT|END|ABORT|ROLLBACK(?!\s+(?:\w+\s+)?TO\b)|PREPARE)\b)[a-z]", re.IGNORECASE
)
_COMMENT = re.compile(r"[\s(]*(/\*|--)")
_EXECUTED_COMMENTS = ("/*!", "/*M!")  # of MySQL and MariaDB
_IN_TRANSACTION, _AUTOCOMMIT = 1, 2  # the protocol's SERVER_STATUS_IN_TRANS, …_AUTOCOMMIT
_IDLE = 0  # libpq's PQTRANS_IDLE
_NO_SUCH_SAVEPOINT_ON_MYSQL = 1305
_NO_SUCH_SAVEPOINT = ("3B001", "25P01")  # 25P01: no transaction is open
_ABORTED = "25P02"  # PostgreSQL executes nothing but a rollback


def is_plain(statement: str, dialect: str) -> bool:
    """Say whether a statement leaves its transaction open, whatever the database holds.

    Args:
        statement: as the driver gets it.
        dialect: SQLAlchemy's name of the database's dialect.
    """
    plain = _PLAIN_ON_POSTGRESQL if dialect == "postgresql" else _PLAIN
    return bool(
        (plain.match(statement) or plain.match(statement, _after_comments(statement)))
        and ";" not in statement
        and ("/*" not in statement or not any(each in statement for each in _EXECUTED_COMMENTS))
    )


def _after_comments(statement: str) -> int:
    """Return where the first word after leading comments may begin; each character is read once.

    A comment that databases may end at different places is not skipped: PostgreSQL nests comments
    and ends one at a carriage return, and the others do neither.
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


def status_of(connection: Connection) -> Callable[[], bool] | None:
    """Return what says whether the server, when it last answered, was in a transaction.

    It reads what the driver keeps. None: this driver keeps nothing.
    """
    driver: Any = connection.connection.driver_connection
    match connection.dialect.driver:
        case "psycopg" | "psycopg_async":
            libpq = driver.pgconn
            return lambda: bool(libpq.transaction_status != _IDLE)
        case "psycopg2":
            return lambda: bool(driver.get_transaction_status() != _IDLE)
        case "asyncpg":
            return lambda: bool(driver.is_in_transaction())
        case "pymysql" | "aiomysql":
            both = _IN_TRANSACTION | _AUTOCOMMIT
            return lambda: bool(driver.server_status & both == _IN_TRANSACTION)
        case "pysqlite" | "aiosqlite":
            return lambda: bool(driver.in_transaction)
    return None


def set_probe(connection: Connection) -> None:
    """Set the savepoint that the next statement has to leave alone."""
    _execute(connection, f"SAVEPOINT {_PROBE}")


def is_probe_there(connection: Connection, *, undo: bool) -> bool | None:
    """Say whether the savepoint is there still, and remove it; None: it is not to be had now.

    Args:
        connection: where it was set.
        undo: also in a transaction that PostgreSQL has aborted, which is undone to the savepoint.
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
    """Execute something beside what SQLAlchemy executes at this moment."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()
