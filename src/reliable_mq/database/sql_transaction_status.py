"""Whether a transaction is still the same one, by the driver's status and by a savepoint of ours.

A server forgets savepoints with their transaction. If ours can be released, the transaction is the
one in which it was set, even if another one has begun meanwhile.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, PoolProxiedConnection

from reliable_mq.database.sql_libpq import IDLE
from reliable_mq.database.sql_types import mysql_code_of, sqlstate_of

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


def execute_on(connection: PoolProxiedConnection, statement: str) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()
