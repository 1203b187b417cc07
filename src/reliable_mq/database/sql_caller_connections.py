"""What is checked on a caller's connection before the first message is written on it.

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
"""

import re
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, PoolProxiedConnection, Table, text
from sqlalchemy.exc import DBAPIError

from reliable_mq.database.sql_faults import drop_lost_transactions
from reliable_mq.database.sql_places import place_of
from reliable_mq.database.sql_transactions import has_pending
from reliable_mq.database.sql_types import MYSQL, dialect_family
from reliable_mq.database.sql_urls import shown_url
from reliable_mq.errors import UsageError

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
                f"the transaction is bound to {shown_url(theirs)}, but this application's "
                f"database is {shown_url(self._ours.url)}: a message written there would "
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
