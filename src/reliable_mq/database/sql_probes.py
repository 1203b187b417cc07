"""Detects whether a handler's statements ended its transaction. The server is asked.

The text of a statement does not say what it does. A procedure may commit; so may a prepared
statement, a comment that MySQL executes, or a list of settings that contains `autocommit`. So a
statement that does not begin with a plain word is executed behind our own savepoint. A server
forgets savepoints with their transaction. If our savepoint can be released, the transaction is the
same one, even if another one has begun meanwhile. That costs two round trips. Plain statements
cost none, also behind a comment that every database ends at the same place.

Actions below SQLAlchemy are not visible here. But drivers keep the last transaction status that
the server sent, at no cost. It shows that no transaction is open, not that it is another one.
"""

import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from reliable_mq.database.sql_types import mysql_code_of, sqlstate_of

_PROBE = "reliable_mq_probe"
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
_IN_TRANSACTION, _AUTOCOMMIT = 1, 2  # the protocol's SERVER_STATUS_IN_TRANS, …_AUTOCOMMIT
_IDLE = 0  # libpq's PQTRANS_IDLE
_NO_SUCH_SAVEPOINT_ON_MYSQL = 1305
_NO_SUCH_SAVEPOINT = ("3B001", "25P01")  # 25P01: no transaction is open
_ABORTED = "25P02"  # PostgreSQL executes nothing but a rollback


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


def status_of(connection: Connection) -> Callable[[], bool] | None:
    """Return a function: whether the server's last answer reported an open transaction.

    It reads the status that the driver keeps. None: this driver keeps none.
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
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()
