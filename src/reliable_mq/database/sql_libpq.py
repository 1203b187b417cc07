"""libpq, below the connections of psycopg for threads: one statement, or one and its COMMIT.

A cursor of psycopg takes longer than libpq for a short statement. Whoever uses libpq holds the lock
of the connection meanwhile, as a cursor does.
"""

import select
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, PoolProxiedConnection

HELD = "reliable_mq.held_rows"


class HeldRows(Protocol):
    """Rows of one transaction that are not written, or not changed, yet."""

    @property
    def pending(self) -> tuple[Any, list[Any]] | None:
        """Who gets stubs after the COMMIT, and the stubs; see `sql_transactions`."""
        ...

    def insert(self) -> None:
        """Write the rows into their transaction."""
        ...

    def commit(self, commit: Callable[[], None]) -> None:
        """Write the rows and commit; `commit` sends a COMMIT alone."""
        ...


def hold(connection: Connection, rows: HeldRows) -> None:
    """Let rows wait for the next statement on a connection, or for its COMMIT."""
    connection.info[HELD] = rows


def held_on(connection: Connection | PoolProxiedConnection) -> Any:
    """Return the rows that wait on a connection, or None."""
    try:
        return connection.info.get(HELD)
    except NotImplementedError:  # SQLAlchemy's first questions to a new server
        return None


def insert_held(connection: Connection) -> None:
    """Write the rows that wait on a connection, if there are any.

    Raises what their statement raises, or an interruption. Then the rows wait again: whoever
    ignores the error must not commit without them. A rollback forgets them.
    """
    rows = taken(connection)
    if rows is None:
        return
    info = connection.info  # an error may invalidate the connection
    try:
        rows.insert()
    except BaseException:
        info[HELD] = rows
        raise


def taken(connection: Connection | PoolProxiedConnection) -> HeldRows | None:
    """Return the rows that wait on a connection, or None; they wait no more."""
    try:
        rows: HeldRows | None = connection.info.pop(HELD, None)
    except NotImplementedError:
        return None
    return rows


def execute_held_of(engine: Engine) -> None:
    """Write what waits on connections of an engine: before other statements, or with a COMMIT."""
    dialect = engine.dialect
    execute, execute_plain = dialect.do_execute, dialect.do_execute_no_params
    execute_many = dialect.do_executemany
    commit, rollback = dialect.do_commit, dialect.do_rollback

    def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if context is not None:
            insert_held(context.root_connection)
        execute(cursor, statement, parameters, context)

    def do_execute_no_params(cursor: Any, statement: str, context: Any = None) -> None:
        if context is not None:
            insert_held(context.root_connection)
        execute_plain(cursor, statement, context)

    def do_executemany(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if context is not None:
            insert_held(context.root_connection)
        execute_many(cursor, statement, parameters, context)

    def do_commit(connection: PoolProxiedConnection) -> None:
        rows = taken(connection)
        if rows is None:
            commit(connection)
        else:
            rows.commit(partial(commit, connection))

    def do_rollback(connection: PoolProxiedConnection) -> None:
        taken(connection)
        rollback(connection)

    # These are documented parts of a dialect. The dialect belongs to this engine alone.
    dialect.do_execute = do_execute  # type: ignore[method-assign]
    dialect.do_execute_no_params = do_execute_no_params  # type: ignore[method-assign]
    dialect.do_executemany = do_executemany  # type: ignore[method-assign]
    dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]
    dialect.do_rollback = do_rollback  # type: ignore[method-assign, assignment]


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


def may_take_commit(driver: Any) -> bool:
    """Whether a statement may wait for the COMMIT of a connection that `free_libpq` allows.

    The transaction has not failed, the server can store every text, so that it refuses none later,
    and `commit` is psycopg's own: that of a subclass may do more.
    """
    import psycopg  # noqa: PLC0415 - an extra, and there if there is such a connection

    libpq = driver.pgconn
    return bool(
        libpq.transaction_status == OPEN
        and getattr(driver.commit, "__func__", None) is psycopg.Connection.commit
        and libpq.parameter_status(b"server_encoding") == b"UTF8"
    )


def error_of(result: Any) -> Exception:
    """Return psycopg's error of a failed statement."""
    import psycopg  # noqa: PLC0415 - an extra, and there if there is such a result

    if result.error_field(_SQLSTATE) is None:  # the server has not answered
        return _lost(result)
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
    if (error := _told(results)) is not None:
        raise error
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
            try:
                libpq.consume_input()
            except Exception as error:  # noqa: BLE001 - the server may have said why before
                raise _told(found) or error from None
        result = libpq.get_result()
        if result is None:  # one statement has ended; after two of these, nothing comes any more
            if is_between:
                raise _told(found) or _lost(libpq)
            is_between = True
            continue
        is_between = False
        if result.status == _SYNC:
            return found
        if result.status != _SKIPPED:
            found.append(result)


def _told(found: Sequence[Any]) -> Exception | None:
    """Return psycopg's error of the first result that has failed, or None."""
    failed = (error_of(each) for each in found if each.status not in (DONE, ROWS))
    return next(failed, None)


def _lost(what: Any) -> Exception:
    """Return psycopg's error of a lost connection, by what libpq says of it or of its result."""
    import psycopg  # noqa: PLC0415 - an extra, and there if there is such a connection

    return psycopg.OperationalError(what.error_message.decode("utf-8", "replace").strip())
