"""Is what is written on a connection committed statement by statement? Asked before the writing.

SQLAlchemy is asked what isolation level it was told, then what its dialect reads from the driver's
connection. Where it has no answer the server is asked. An attribute of a driver is no answer by
itself: each driver names it otherwise, and asyncpg has none.
"""

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from reliable_mq.database.sql_types import family_of

_ASKS = "reliable_mq_asks"


def is_autocommit(connection: Connection) -> bool:
    """Say whether a statement on a connection would be a transaction of its own."""
    if _was_told_autocommit(connection):
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


def _was_told_autocommit(connection: Connection) -> bool:
    level = connection.get_execution_options().get("isolation_level")
    if level is None:  # what `create_engine(isolation_level=…)` said
        level = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return level == "AUTOCOMMIT"


def _is_open_or_begins(connection: Connection) -> bool:
    """Say of SQLite whether a transaction is open, or the next INSERT begins one."""
    driver: Any = connection.connection.driver_connection
    # aiosqlite shows some attributes of the connection below it, and not this one of Python 3.12.
    below = getattr(driver, "_conn", driver)
    if getattr(below, "autocommit", None) is True:  # there a commit does nothing
        return False
    return bool(driver.in_transaction) or driver.isolation_level is not None


def _asked_of_server(connection: Connection) -> bool:
    if family_of(connection.dialect.name) == "mysql":
        return bool(connection.exec_driver_sql("SELECT @@autocommit").scalar_one())
    try:
        connection.exec_driver_sql(f"SAVEPOINT {_ASKS}")
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return True  # PostgreSQL takes it within a transaction only
    connection.exec_driver_sql(f"RELEASE SAVEPOINT {_ASKS}")
    return False
