"""Read rows of PostgreSQL and SQLite as Arrow batches by ADBC drivers, without Python rows.

Receives a database URL and a statement without parameters. Returns batches in the types of the
driver. `sql_arrow` converts them.

PostgreSQL is read by a binary COPY, which does not allow parameters.
"""

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import adbc_driver_postgresql.dbapi
import adbc_driver_sqlite.dbapi
import pyarrow as pa
from adbc_driver_manager.dbapi import Connection, Cursor, Error
from adbc_driver_postgresql import StatementOptions as PostgresOptions
from adbc_driver_sqlite import StatementOptions as SqliteOptions
from sqlalchemy import URL

from reliable_mq.database.sql_urls import shown_url, words_in_utf8
from reliable_mq.errors import Unavailable

APPLICATION = "reliable_mq reconcile"
"""The `application_name` of connections that read ledgers, on PostgreSQL."""
SQLITE_WAIT_MS = 30_000

_OF_POSTGRES = ("SET statement_timeout = 0", "SET default_transaction_read_only = on")
_OF_SQLITE = (f"PRAGMA busy_timeout = {SQLITE_WAIT_MS}", "PRAGMA query_only = 1")


def read_postgres(url: URL, statement: str, batch_size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a statement, about `batch_size` bytes at a time.

    Raises:
        Unavailable: the server cannot be reached, or it ended the statement.
    """
    options = {PostgresOptions.BATCH_SIZE_HINT_BYTES.value: str(batch_size)}
    try:
        connection = adbc_driver_postgresql.dbapi.connect(conninfo(url), autocommit=True)
        yield from _batches(connection, _OF_POSTGRES, statement, options)
    except Error as error:
        raise Unavailable(_one_line(url, error)) from error


def read_sqlite(url: URL, statement: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a statement, `batch_rows` at a time.

    The driver takes the types of columns from the first batch, and treats columns of nulls as
    numbers. So the first row of the statement must have values of the wanted types.

    Raises:
        Unavailable: the file cannot be opened, or is locked for half a minute.
    """
    options = {SqliteOptions.BATCH_ROWS.value: str(batch_rows)}
    try:
        connection = adbc_driver_sqlite.dbapi.connect(file_uri(url), autocommit=True)
        yield from _batches(connection, _OF_SQLITE, statement, options)
    except Error as error:
        raise Unavailable(_one_line(url, error)) from error


def _batches(
    connection: Connection, settings: tuple[str, ...], statement: str, options: dict[str, str]
) -> Iterator[pa.RecordBatch]:
    with closing(connection):
        for setting in settings:
            with closing(connection.cursor()) as cursor:
                cursor.execute(setting)
                cursor.fetch_arrow_table()
        with closing(connection.cursor()) as cursor:
            cursor.adbc_statement.set_options(**options)
            yield from _stream(cursor, statement)


def _stream(cursor: Cursor, statement: str) -> Iterator[pa.RecordBatch]:
    cursor.execute(statement)
    with closing(cursor.fetch_record_batch()) as reader:
        yield from reader


def conninfo(url: URL) -> str:
    """Return a SQLAlchemy URL in libpq's form, without options of the Python driver only."""
    from psycopg import conninfo as libpq  # noqa: PLC0415 - only who reads PostgreSQL has it
    from psycopg.pq import Conninfo  # noqa: PLC0415

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    _, words = url.get_dialect()().create_connect_args(url)
    given = {name: value for name, value in words.items() if name in known}
    given |= words_in_utf8(url)  # Arrow's text is UTF-8
    return libpq.make_conninfo(**{"application_name": APPLICATION, **given})


def file_uri(url: URL) -> str:
    """Return the URI of a SQLite file, which creates no file. It may be a read-only file."""
    (path, *_), _ = url.get_dialect()().create_connect_args(url)
    return path if path.startswith("file:") else f"file:{quote(path)}?mode=rw"


def _one_line(url: URL, error: Error) -> str:
    said = " ".join(str(error).split())
    return f"{shown_url(url)}: {said}"
