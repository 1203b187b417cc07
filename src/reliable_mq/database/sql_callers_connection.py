"""A connection that a caller brings: is it ours, can it roll back, do its savepoints hold?

**Ours.** What is written into another database is found by nobody. URLs that are equal settle it.
Two spellings of one server (a name and an address, a pooler, a search path) do not, so then the
databases themselves are asked, once for each engine.

**AUTOCOMMIT.** SQLAlchemy is asked what isolation level it was told, then what its dialect reads
from the driver's connection. Where it has no answer the server is asked. An attribute of a driver
is no answer by itself: each driver names it otherwise, and asyncpg has none.

**Savepoints of SQLite.** By default Python's sqlite3 begins a transaction before an INSERT, not
before a SAVEPOINT. SQLite takes a savepoint outside of a transaction for the begin of one, and its
RELEASE for the COMMIT. So messages would be sent whatever becomes of the transaction around them.
An engine is changed when it first carries a message. From then on a transaction is begun before its
first savepoint. A transaction that was under way at that moment may be a savepoint's: while it has
messages, its savepoints are not released, and the COMMIT takes them all.
"""

import re
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, PoolProxiedConnection, Table, text
from sqlalchemy.exc import DBAPIError

from reliable_mq.database.sql_faults import drop_lost_transactions
from reliable_mq.database.sql_handover import has_pending
from reliable_mq.database.sql_places import place_of
from reliable_mq.database.sql_types import MYSQL, family_of
from reliable_mq.errors import UsageError

_ASKS = "reliable_mq_asks"
_BEGUN_IN_SIGHT = "reliable_mq.begun_in_sight"
# Possessive: a statement with many comments is read once.
_SAVEPOINT = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*+(SAVEPOINT|RELEASE)\b", re.IGNORECASE | re.DOTALL
)
# When the server was started, to the microsecond, tells servers apart without any privilege; the
# table's number tells schemas of one database apart.
_IDENTITY = text("SELECT pg_postmaster_start_time(), current_database(), to_regclass(:table)::oid")
# MySQL has a number for every server, MariaDB of old none; host, port and files tell those apart.
_MYSQL_IDENTITY = text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('server_uuid', 'server_uid', 'server_id', 'hostname', 'port', 'socket', 'datadir')"
)


class SameDatabase:
    """Knows which engines lead to our database."""

    def __init__(self, engine: Engine, table: Table) -> None:
        self._ours = engine
        self._table = table
        self._known: WeakSet[Engine] = WeakSet((engine,))

    def check(self, connection: Connection) -> bool:
        """Say whether a connection is of an engine that was not met before.

        Raises:
            UsageError: when it leads to another database than ours; names both.
        """
        if connection.engine in self._known:
            return False
        if not self._is_ours(connection):
            theirs = connection.engine.url
            raise UsageError(
                f"the transaction is bound to {theirs.render_as_string()}, but this application's "
                f"database is {self._ours.url.render_as_string()}: a message written there would "
                "never be sent. Use a session or connection of this database, name another one by "
                "mq.transaction(…, database=…), or use a ReliableMQ of that one"
            )
        if connection.dialect.name in MYSQL:
            drop_lost_transactions(connection.engine)
        self._known.add(connection.engine)
        return True

    def _is_ours(self, connection: Connection) -> bool:
        theirs, ours = connection.engine.url, self._ours.url
        if place_of(theirs) == place_of(ours):
            return True
        if family_of(theirs.get_backend_name()) != family_of(ours.get_backend_name()):
            return False
        if connection.dialect.name == "sqlite":
            return False
        name = {"table": self._table.name}
        with self._ours.connect() as own:
            return _identity(connection, name) == _identity(own, name)


def _identity(connection: Connection, name: dict[str, str]) -> tuple[Any, ...]:
    if family_of(connection.dialect.name) == "mysql":
        server = sorted(map(tuple, connection.execute(_MYSQL_IDENTITY)))
        return (server, connection.execute(text("SELECT database()")).scalar_one())
    return tuple(connection.execute(_IDENTITY, name).one())


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


def keep_savepoints(engine: Engine) -> None:
    """Let the connections of an SQLite engine keep what a savepoint wrote until the COMMIT.

    To be called once for an engine.
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

    # Documented parts of a dialect, and of this engine's own one: no other engine is touched.
    dialect.do_begin = do_begin  # type: ignore[method-assign, assignment]
    dialect.do_execute = do_execute  # type: ignore[method-assign]
    dialect.do_execute_no_params = do_execute_no_params  # type: ignore[method-assign]
