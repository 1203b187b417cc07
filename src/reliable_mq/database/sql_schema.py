"""Our tables as a whole: made where they are missing, compared with what is there, their version.

Receives tables and a connection. The version is one row in `<prefix>schema_version`, which is also
Alembic's: a revision, four digits that grow with every migration. Nothing here needs Alembic.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy import (
    Column,
    Connection,
    Inspector,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

from reliable_mq.database.sql_faults import is_database_busy
from reliable_mq.database.sql_types import family_of, is_on, table_options
from reliable_mq.errors import ConfigurationError, Unavailable

REVISION = "0002"
"""The revision of the tables that this release expects."""

_LOCK_SECONDS = 60
_NOT_ALONE = "another process has been changing the tables for a minute; try again"


class SchemaDifference(NamedTuple):
    """What a database lacks that the tables of this release have."""

    kind: str
    """table, column, index or key"""
    table: str
    name: str
    """of the column or index, or the columns of the key"""

    def __str__(self) -> str:
        if self.kind == "table":
            return f"table {self.table} is missing"
        return f"table {self.table} has no {self.kind} {self.name}"


def version_table(prefix: str) -> Table:
    """Return `<prefix>schema_version`: one row, the revision of the tables beside it."""
    return Table(
        f"{prefix}schema_version", MetaData(), Column("version_num", String(32), primary_key=True)
    )


def revision_of(connection: Connection, prefix: str) -> str | None:
    """Return the revision that the database notes, None: it notes none."""
    table = version_table(prefix)
    if not inspect(connection).has_table(table.name):
        return None
    return connection.execute(select(table.c.version_num)).scalars().first()


def check_revision(connection: Connection, prefix: str) -> str | None:
    """Return the revision that the database notes; newer ones are fine, they only add.

    Raises:
        ConfigurationError: when it is older than this release, and what to do.
    """
    there = revision_of(connection, prefix)
    if there is not None and there < REVISION:
        raise ConfigurationError(
            f"the tables {prefix}… are of revision {there}, this release needs {REVISION}: "
            "run reliable-mq migrate MODULE:OBJECT"
        )
    return there


def create_missing(connection: Connection, metadata: MetaData) -> None:
    """Create the tables and indexes that are missing; what is there stays as it is.

    A table and its indexes are several statements, each of which commits on MySQL; so whoever died
    between two of them is followed by somebody who goes on.

    Raises:
        ConfigurationError: when a table is there that lacks a column; nothing is created then.
    """
    for each in differences(connection, metadata):
        if each.kind == "column":
            raise ConfigurationError(
                f"{each}: another release has made it, or none of ours. If it is of a release of "
                "ours, run reliable-mq migrate MODULE:OBJECT"
            )
    options = table_options(connection.dialect)
    for table in metadata.sorted_tables:
        table.dialect_kwargs.update(options)
        table.create(connection, checkfirst=True)
    dialect, inspector = connection.dialect.name, inspect(connection)
    for table in metadata.sorted_tables:
        there = {index["name"] for index in inspector.get_indexes(table.name)}
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if is_on(index, dialect) and index.name not in there:
                connection.execute(CreateIndex(index))


def create_and_note(connection: Connection, metadata: MetaData, prefix: str) -> None:
    """Create what is missing and note the revision; for those who do without Alembic.

    Raises:
        ConfigurationError: when the tables that are there are not of this release; nothing is
            created then.
    """
    noted = check_revision(connection, prefix)
    create_missing(connection, metadata)
    if noted is None:
        versions = version_table(prefix)
        versions.create(connection, checkfirst=True)
        connection.execute(insert(versions), {"version_num": REVISION})


def differences(connection: Connection, metadata: MetaData) -> list[SchemaDifference]:
    """Return what of our tables is not in the database; what is there beside it is no matter."""
    inspector = inspect(connection)
    there = set(inspector.get_table_names())
    found: list[SchemaDifference] = []
    for table in metadata.sorted_tables:
        if table.name not in there:
            found.append(SchemaDifference("table", table.name, ""))
            continue
        columns = {column["name"] for column in inspector.get_columns(table.name)}
        found += [
            SchemaDifference("column", table.name, column.name)
            for column in table.columns
            if column.name not in columns
        ]
        found += _missing_indexes(inspector, table, connection.dialect.name)
    return found


def _missing_indexes(
    inspector: Inspector, table: Table, dialect: str
) -> Iterator[SchemaDifference]:
    indexes = inspector.get_indexes(table.name)
    there = {(index["name"], tuple(index["column_names"])) for index in indexes}
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        columns = tuple(column.name for column in index.columns)
        if is_on(index, dialect) and (index.name, columns) not in there:
            yield SchemaDifference("index", table.name, f"{index.name} ({', '.join(columns)})")
    unique = {tuple(index["column_names"]) for index in indexes if index["unique"]}
    unique |= {tuple(each["column_names"]) for each in inspector.get_unique_constraints(table.name)}
    unique.add(tuple(inspector.get_pk_constraint(table.name)["constrained_columns"]))
    wanted = [tuple(column.name for column in table.primary_key.columns)]
    wanted += [
        tuple(column.name for column in constraint.columns)
        for constraint in table.constraints
        if isinstance(constraint, UniqueConstraint)
    ]
    for columns in wanted:
        if columns not in unique:
            yield SchemaDifference("key", table.name, ", ".join(columns))


@contextmanager
def alone(connection: Connection, prefix: str) -> Iterator[None]:
    """Let nobody else change these tables meanwhile; the lock ends with the connection at last.

    SQLite has no such lock: there a transaction keeps the others out, so what belongs together is
    one transaction. Ends the transaction that the connection is in.

    Raises:
        Unavailable: when another one did not end within a minute.
    """
    name = f"reliable-mq tables {prefix}"
    family = family_of(connection.dialect.name)
    if family == "postgresql":
        key = {"key": zlib.crc32(name.encode())}
        connection.execute(text(f"SET lock_timeout = '{_LOCK_SECONDS}s'"))
        try:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), key)
        except DBAPIError as error:
            connection.rollback()
            if is_database_busy(error):
                raise Unavailable(_NOT_ALONE) from error
            raise
        connection.execute(text("RESET lock_timeout"))
    elif family == "mysql":
        # Names of locks are the server's, so the database's goes into ours; 64 letters at most.
        mine = {"name": f"rmq{zlib.crc32(f'{name} {connection.engine.url.database}'.encode()):x}"}
        mine_for = mine | {"seconds": _LOCK_SECONDS}
        if connection.execute(text("SELECT get_lock(:name, :seconds)"), mine_for).scalar() != 1:
            raise Unavailable(_NOT_ALONE)
    connection.commit()
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.rollback()
            if family == "postgresql":
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)
            elif family == "mysql":
                connection.execute(text("SELECT release_lock(:name)"), mine)
            connection.commit()
