"""libpq, below the connections of psycopg for threads: one statement, and what it answered.

A cursor of psycopg takes longer than libpq for a short statement. Whoever uses libpq holds the lock
of the connection meanwhile, as a cursor does.
"""

import select
import threading
from collections.abc import Sequence
from typing import Any

IDLE, OPEN = 0, 2  # libpq's PQTRANS_IDLE, PQTRANS_INTRANS
DONE, ROWS = 1, 2  # libpq's PGRES_COMMAND_OK, PGRES_TUPLES_OK
_NO_PIPELINE = 0  # libpq's PQ_PIPELINE_OFF
_SYNC, _SKIPPED = 10, 11  # libpq's PGRES_PIPELINE_SYNC, PGRES_PIPELINE_ABORTED
_SQLSTATE = ord("C")  # libpq's PG_DIAG_SQLSTATE
COMMIT, COMMIT_AND_CHAIN = b"COMMIT", b"COMMIT AND CHAIN"
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


def execute_prepared(
    driver: Any, name: bytes, texts: Sequence[bytes | None], formats: Sequence[int]
) -> Any:
    """Execute a prepared statement; return its result.

    Raises:
        psycopg.Error: it failed.
    """
    with driver.lock:
        result = driver.pgconn.exec_prepared(name, texts, formats)
    if result.status not in (DONE, ROWS):
        raise error_of(result)
    return result


def execute_and_commit(
    driver: Any,
    name: bytes,
    texts: Sequence[bytes | None],
    formats: Sequence[int],
    *,
    end: bytes = COMMIT,
) -> int:
    """Execute a prepared statement and COMMIT, in one round trip; return the rows it changed.

    If the statement fails, PostgreSQL skips the COMMIT, and the transaction stays open and aborted.
    An interruption closes the connection: nobody could read the answers that are still due.

    Raises:
        psycopg.Error: of the statement, or of the COMMIT.
    """
    libpq = driver.pgconn
    with driver.lock:
        try:
            libpq.enter_pipeline_mode()
            libpq.send_query_prepared(name, texts, formats)
            libpq.send_query_params(end, None)
            libpq.pipeline_sync()
            results = _answers(libpq)
            libpq.exit_pipeline_mode()
        except BaseException:
            libpq.finish()
            raise
    for result in results:
        if result.status not in (DONE, ROWS):
            raise error_of(result)
    return results[0].command_tuples or 0


def _answers(libpq: Any) -> list[Any]:
    """Return the results up to the next one of a sync.

    libpq's own wait for a result in a pipeline holds the interpreter's lock, so this waits itself.
    """
    answers = select.poll()
    answers.register(libpq.socket, select.POLLIN)
    while libpq.flush():  # the socket takes no more now
        either = select.poll()
        either.register(libpq.socket, select.POLLIN | select.POLLOUT)
        either.poll()
        libpq.consume_input()
    found: list[Any] = []
    is_between = False
    while True:
        while libpq.is_busy():
            answers.poll()
            libpq.consume_input()
        result = libpq.get_result()
        if result is None:  # one statement has ended; after two of these, nothing comes any more
            if is_between:
                raise _lost(libpq, found)
            is_between = True
            continue
        is_between = False
        if result.status == _SYNC:
            return found
        if result.status != _SKIPPED:
            found.append(result)


def _lost(libpq: Any, found: Sequence[Any]) -> Exception:
    """Return psycopg's error of a connection that was lost behind these results."""
    for result in found:
        if result.status not in (DONE, ROWS):
            return error_of(result)
    import psycopg  # noqa: PLC0415 - an extra, and there if there is such a connection

    return psycopg.OperationalError(libpq.error_message.decode("utf-8", "replace").strip())
