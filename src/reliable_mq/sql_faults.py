"""What a database's errors mean: is it away, or did it say no?"""

import sqlite3

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionFree


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
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN}
    # What the server itself refused carries a SQLSTATE; a connection that was never made has none.
    state = getattr(cause, "sqlstate", None)
    if state is None:
        return isinstance(error, OperationalError | InterfaceError)
    return str(state).startswith(("08", "57P", "53"))


def fault_line(error: BaseException) -> str:
    """Return what the database said, in one line, without the statement and its parameters."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
