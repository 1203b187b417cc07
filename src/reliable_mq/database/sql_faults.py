"""The meaning of a database's errors: unreachable, busy or refused? And their log lines."""

import logging
import sqlite3
import time
from traceback import walk_tb

from sqlalchemy import Engine, ExceptionContext, event
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from reliable_mq.database.sql_types import is_missing_table, mysql_code, mysql_code_of, sqlstate_of
from reliable_mq.error_texts import words_of
from reliable_mq.errors import ConnectionLost, RemoteError, Unavailable, error_text
from reliable_mq.telemetry import application_events
from reliable_mq.telemetry.outages import FaultRate, Outages

log = logging.getLogger(__name__)

# SQLSTATE: serialization failure, deadlock, lock not available (a lock time-out, NOWAIT).
_BUSY_STATES = frozenset({"40001", "40P01", "55P03"})
# Connections, shutdown, resources; 25006: the server is read-only (no longer or not yet primary).
_DOWN_STATES = ("08", "57P", "53", "25006")

# MySQL and MariaDB, by number. A lock time-out, a deadlock, a row that changed since it was read,
# a branch of XA that lost, NOWAIT, a conflict in group replication.
_MYSQL_BUSY = frozenset({1205, 1213, 1020, 1614, 3572, 3101})
# After these the server has rolled back the whole transaction (after 1205 only when
# innodb_rollback_on_timeout is set); 1206 is a full lock table, 1180 a commit that failed.
_MYSQL_ROLLED_BACK = frozenset({1205, 1213, 1020, 1614, 3101, 1206, 1180})
_MYSQL_DOWN = frozenset(
    {1040, 1047, 1053, 1129, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1836, 1927, 4031}
    | {1021, 1114, 1206}  # no room on the disk, in a table, for locks
    | {0, 2002, 2003, 2005, 2006, 2012, 2013, 2014, 2045, 2055}  # the driver's: no connection
)
# The file cannot be opened, written or read, or its disk is full.
_SQLITE_DOWN = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}
)
_POOLS = "sqlalchemy.pool"  # the module through which every connection is made
_ASYNCPG = "sqlalchemy.dialects.postgresql.asyncpg"  # through which its timeouts come
_RIGHT_STATE = "42501"  # SQLSTATE: insufficient privilege
_MYSQL_RIGHTS = frozenset({1044, 1142, 1143, 1227, 1370})  # a database, table, column, routine
_LATE_STATE = "57014"  # SQLSTATE: query canceled
_MYSQL_LATE = frozenset({1317, 1969, 3024})  # interrupted; a limit of MariaDB, of MySQL
_UNDEFINED_COLUMN = "42703"  # SQLSTATE
_MYSQL_BAD_FIELD = 1054
_SQLITE_COLUMN = ("no such column", "has no column named")
_MYSQL_OPTION_PREVENTS = 1290  # --read-only on a former primary; also other options


def is_database_down(error: BaseException) -> bool:
    """Return whether the database could not be reached or used; it did not refuse anything."""
    if isinstance(error, NoConnectionFree):
        return True
    if not isinstance(error, DBAPIError) or is_database_busy(error):
        return False  # a connection that lost a deadlock may be dropped; the database is there
    if error.connection_invalidated:
        return True
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return _sqlite_code(cause) in _SQLITE_DOWN
    if (code := mysql_code(error)) is not None:
        is_read_only = code == _MYSQL_OPTION_PREVENTS and "read-only" in str(cause)
        return code in _MYSQL_DOWN or is_read_only
    # A refusal by the server has a SQLSTATE; a connection that failed has none.
    state = sqlstate_of(cause)
    if state is None:
        return isinstance(error, OperationalError | InterfaceError)
    return state.startswith(_DOWN_STATES)


def is_database_away(error: BaseException) -> bool:
    """Return whether a database is down, also by what a driver raises past SQLAlchemy.

    asyncpg does so while it connects: an `OSError`, or an error of its own with an SQLSTATE. With a
    `command_timeout`, a server that hangs is a `TimeoutError`.
    """
    if is_database_down(error):
        return True
    if isinstance(error, OSError):
        ways = (_POOLS, _ASYNCPG) if isinstance(error, TimeoutError) else _POOLS
        frames = walk_tb(error.__traceback__)
        return any(frame.f_globals.get("__name__", "").startswith(ways) for frame, _ in frames)
    state = getattr(error, "sqlstate", None)
    return isinstance(state, str) and state.startswith(_DOWN_STATES)


def is_database_busy(error: BaseException) -> bool:
    """Return whether a transaction lost against another one, and may succeed when tried again.

    A deadlock, a serialization failure, or a lock timeout: nobody made a mistake.
    """
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    return sqlstate_of(error.orig) in _BUSY_STATES or mysql_code(error) in _MYSQL_BUSY


def is_right_missing(error: BaseException) -> bool:
    """Return whether the account may not run the statement."""
    if not isinstance(error, DBAPIError):
        return False
    return sqlstate_of(error.orig) == _RIGHT_STATE or mysql_code(error) in _MYSQL_RIGHTS


def is_missing_column(error: BaseException) -> bool:
    """Return whether a statement failed because its table lacks a column."""
    if not isinstance(error, DBAPIError):
        return False
    if sqlstate_of(error.orig) == _UNDEFINED_COLUMN or mysql_code(error) == _MYSQL_BAD_FIELD:
        return True
    said = str(error.orig)
    return isinstance(error.orig, sqlite3.Error) and any(each in said for each in _SQLITE_COLUMN)


def is_row_refused(error: BaseException) -> bool:
    """Return whether a row was refused for its values: they do not fit, or a rule forbids them.

    Trying again does not help; other rows are not affected. Text that no character set can encode
    is refused by the driver.
    """
    return isinstance(error, DataError | IntegrityError | UnicodeError)


def drop_lost_transactions(engine: Engine) -> None:
    """Drop a connection when a MySQL server has rolled back its transaction by itself.

    After a deadlock the server has rolled everything back, and the next statement begins a new
    transaction. If a caller handled the error and continued, its commit would lack the stub or the
    CONSUMED row that was written before. So the connection is dropped: every statement raises until
    the transaction is rolled back, as in PostgreSQL.
    """
    if not event.contains(engine, "handle_error", _drop_when_lost):
        event.listen(engine, "handle_error", _drop_when_lost)


def is_transaction_lost(cause: BaseException | None) -> bool:
    """Return whether a MySQL server has rolled back the whole transaction at a driver's error."""
    return mysql_code_of(cause) in _MYSQL_ROLLED_BACK


def _drop_when_lost(context: ExceptionContext) -> None:
    if context.connection is not None and is_transaction_lost(context.original_exception):
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False


def _sqlite_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_statement_ended(error: BaseException) -> bool:
    """Return whether a limit of time, or a person, has ended a statement."""
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) == sqlite3.SQLITE_INTERRUPT
    return sqlstate_of(error.orig) == _LATE_STATE or mysql_code(error) in _MYSQL_LATE


def fault_line(error: BaseException) -> str:
    """Return the database's message in one line, without the statement and its parameters."""
    return " ".join(words_of(getattr(error, "orig", None) or error).split())


def known_fault(error: BaseException) -> str | None:
    """Return one line about a known fault; None: it may be a bug, so log the traceback."""
    if is_database_down(error):
        return f"the database cannot be reached: {fault_line(error)}"
    if is_database_busy(error):
        return f"the database is busy: {fault_line(error)}"
    if is_right_missing(error):
        return (
            f"the account lacks a right: {fault_line(error)}; reliable-mq doctor --app "
            "MODULE:OBJECT has the statement that grants it"
        )
    if is_statement_ended(error):
        return f"a statement took too long and was ended, or was cancelled: {fault_line(error)}"
    if is_missing_table(error):
        return (
            f"a table is missing: {fault_line(error)}; for one of ours call mq.create_tables() "
            "or run reliable-mq create-tables --app MODULE:OBJECT"
        )
    return None


class FaultLog:
    """Logs the faults of a repeated operation, each kind at once and then once in a minute.

    A broker or a database that cannot be reached is told by its connections, once for the process.
    Then a line of level DEBUG says what waits for it.

    Args:
        log: the logger.
        what: the operation that failed; it begins the line.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._rate = FaultRate()
        self.is_failing = False  # whether a line of `log_line` has no `note_success` yet

    def log_fault(self, error: BaseException) -> None:
        """Log a fault: a line for a known one, and the traceback for any other."""
        line = known_fault(error)
        if isinstance(error, ConnectionLost) or (is_database_down(error) and is_told(error)):
            text = line or error_text(error)
            application_events.OPERATION_WAITS.log(self._log, what=self._what, error=text)
        elif isinstance(error, Unavailable | RemoteError):
            self.log_line(type(error).__name__, error_text(error))
        elif line is not None:
            self.log_line(line.partition(":")[0], line)
        elif self._rate.count_fault(fault_line(error), time.monotonic()) is not None:
            application_events.OPERATION_FAILED.log(
                self._log, traceback_of=error, what=self._what, error=fault_line(error)
            )

    def log_line(self, kind: str, line: str) -> None:
        """Log a line, unless a line of this kind was logged in the last minute."""
        if self._rate.count_fault(kind, time.monotonic()) is not None:
            self.is_failing = True
            application_events.OPERATION_FAILING.log(self._log, what=self._what, error=line)

    def note_success(self) -> None:
        """Log that the operation works again, if a line said that it does not."""
        if self.is_failing:
            application_events.OPERATION_WORKS.log(self._log, what=self._what)
            self.is_failing = False


class DatabaseWatch:
    """Logs when a database cannot be reached, and when it is back: once for all its users.

    Invariant: each engine of the database reports to the same watch.

    Args:
        name: the database's URL, without its password.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._outages = Outages()

    def watch(self, engine: Engine) -> None:
        """Report the errors and the new connections of an engine."""
        event.listen(engine, "handle_error", self._failed)
        event.listen(engine, "connect", self._connected)

    def _failed(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception
        if error is None or not is_database_down(error):
            return
        if self._outages.lose(self._name, time.monotonic()):
            application_events.DATABASE_LOST.log(
                log, database=self._name, error=fault_line(context.original_exception)
            )

    def _connected(self, _connection: object, _record: object) -> None:
        if self._name not in self._outages:
            return
        seconds = self._outages.find(self._name, time.monotonic())
        if seconds is not None:
            application_events.DATABASE_BACK.log(log, database=self._name, seconds=seconds)


def is_told(error: BaseException) -> bool:
    """Whether a `DatabaseWatch` has told about this error; not that no connection is free."""
    return not isinstance(error, NoConnectionFree)
