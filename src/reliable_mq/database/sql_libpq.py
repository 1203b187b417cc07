"""libpq, below the connections of psycopg for threads: one statement, and what it answered.

A cursor of psycopg takes longer than libpq for a short statement. Whoever uses libpq holds the lock
of the connection meanwhile, as a cursor does.
"""

import threading
from typing import Any

IDLE = 0  # libpq's PQTRANS_IDLE
DONE, ROWS = 1, 2  # libpq's PGRES_COMMAND_OK, PGRES_TUPLES_OK
_NO_PIPELINE = 0  # libpq's PQ_PIPELINE_OFF
_SQLSTATE = ord("C")  # libpq's PG_DIAG_SQLSTATE
_Lock = type(threading.Lock())  # of psycopg's connections for threads


def free_libpq(driver: Any) -> Any:
    """Return the libpq connection of psycopg's, to which a statement may be sent at once.

    None: another driver or psycopg for asyncio, a pipeline that somebody left open, or no open
    transaction, which a cursor would begin.
    """
    libpq: Any = getattr(driver, "pgconn", None)
    is_free = (
        libpq is not None
        and isinstance(driver.lock, _Lock)
        and libpq.pipeline_status == _NO_PIPELINE
        and libpq.transaction_status != IDLE
    )
    return libpq if is_free else None


def error_of(result: Any) -> Exception:
    """Return psycopg's error of a failed statement."""
    import psycopg  # noqa: PLC0415 - an extra, and there if there is such a result

    if result.error_field(_SQLSTATE) is None:  # the server has not answered: the connection is lost
        return psycopg.OperationalError(result.error_message.decode("utf-8", "replace").strip())
    return psycopg.errors.error_from_result(result)
