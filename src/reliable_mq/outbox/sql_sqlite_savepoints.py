"""SQLite on a user's own engine: to release a savepoint must not be to commit.

By default Python's sqlite3 begins a transaction before an INSERT, not before a SAVEPOINT. SQLite
takes a savepoint outside of a transaction for the begin of one, and its RELEASE for the COMMIT. So
messages would be sent whatever becomes of the transaction around them.

Receives an engine when it first carries a message. From then on a transaction is begun before its
first savepoint. A transaction that was under way at that moment may be a savepoint's: while it has
messages, its savepoints are not released, and the COMMIT takes them all.
"""

import re
from typing import Any

from sqlalchemy import Connection, Engine, PoolProxiedConnection

from reliable_mq.outbox.sql_handover import has_pending

_BEGUN_IN_SIGHT = "reliable_mq.begun_in_sight"
# Possessive: a statement with many comments is read once.
_SAVEPOINT = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*+(SAVEPOINT|RELEASE)\b", re.IGNORECASE | re.DOTALL
)


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
