"""What a database's errors mean: is it away, is it busy, or did it say no? And telling of them."""

import logging
import sqlite3
import time

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from reliable_mq.sql_types import is_missing_table

TOLD_SECONDS = 10.0
"""A fault that every message meets is told once in so many seconds."""

# SQLSTATE: serialization failure, deadlock, lock not available (a lock time-out, NOWAIT).
_BUSY_STATES = frozenset({"40001", "40P01", "55P03"})


def is_database_down(error: BaseException) -> bool:
    """Say whether the database could not be reached, or not be had, rather than said no."""
    if isinstance(error, NoConnectionFree):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return _sqlite_code(cause) == sqlite3.SQLITE_CANTOPEN
    # What the server itself refused carries a SQLSTATE; a connection that was never made has none.
    state = getattr(cause, "sqlstate", None)
    if state is None:
        return isinstance(error, OperationalError | InterfaceError)
    return str(state).startswith(("08", "57P", "53"))


def is_database_busy(error: BaseException) -> bool:
    """Say whether a transaction lost against another one, and may win when it is tried again.

    A deadlock, a serialization failure, a lock that was not to be had in time: nobody's fault.
    """
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    return getattr(error.orig, "sqlstate", None) in _BUSY_STATES


def _sqlite_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def fault_line(error: BaseException) -> str:
    """Return what the database said, in one line, without the statement and its parameters."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def known_fault(error: BaseException) -> str | None:
    """Return one line that says what is wrong, None: it may be a bug, so all of it matters."""
    if is_database_down(error):
        return f"the database cannot be reached: {fault_line(error)}"
    if is_database_busy(error):
        return f"the database is busy: {fault_line(error)}"
    if is_missing_table(error):
        return (
            f"a table is missing: {fault_line(error)}; for one of ours call mq.create_tables() "
            "or run reliable-mq create-tables MODULE:OBJECT"
        )
    return None


class FaultTeller:
    """Logs the faults of something that goes on trying: known ones in a line, and not every time.

    Invariant: of one kind of fault at most one line is written in `TOLD_SECONDS`.

    Args:
        log: where to.
        what: what could not be done, for the begin of the line.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._told: dict[str, float] = {}

    def tell(self, error: BaseException) -> None:
        """Log a fault: a line for a known one, with its traceback for any other."""
        line = known_fault(error)
        if line is None:
            self._log.error("%s: %s", self._what, fault_line(error), exc_info=error)
        else:
            self.tell_line(line.partition(":")[0], line)

    def tell_line(self, kind: str, line: str) -> None:
        """Log a line, unless one of its kind was written a moment ago."""
        now = time.monotonic()
        if now >= self._told.get(kind, now):
            self._told[kind] = now + TOLD_SECONDS
            self._log.warning("%s: %s", self._what, line)
