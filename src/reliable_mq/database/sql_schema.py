"""Our tables as a whole: create what is missing, compare with the database, and their version.

Receives tables and a connection. The version is one row in `<prefix>schema_version`, shared with
Alembic: a revision of four digits that grows with every migration. This module needs no Alembic.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.engine.interfaces import ReflectedIndex
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

from reliable_mq.database.sql_faults import is_database_busy
from reliable_mq.database.sql_types import dialect_family, is_on, table_options
from reliable_mq.errors import ConfigurationError, Unavailable

REVISION = "0008"
"""The revision of the tables that this release expects."""

_LOCK_SECONDS = 60
_NOT_ALONE = "another process has been changing the tables for a minute; try again"


class SchemaDifference(NamedTuple):
    """Something that this release's tables have and the database lacks."""

    kind: str
    """table, column, index or key"""
    table: str
    name: str
    """the column or index, or the columns of the key"""

    def __str__(self) -> str:
        if self.kind == "table":
            return f"table {self.table} is missing"
        return f"table {self.table} has no {self.kind} {self.name}"


def version_table(prefix: str) -> Table:
    """Return `<prefix>schema_version`: one row, the revision of the tables with this prefix."""
    return Table(
        f"{prefix}schema_version", MetaData(), Column("version_num", String(32), primary_key=True)
    )


def revision_of(connection: Connection, prefix: str) -> str | None:
    """Return the revision that the database records; None: it records none."""
    table = version_table(prefix)
    if not inspect(connection).has_table(table.name):
        return None
    return connection.execute(select(table.c.version_num)).scalars().first()


def is_older(revision: str | None) -> bool:
    """Return whether tables of a revision lack what this release needs."""
    return revision is not None and revision < REVISION


def check_revision(connection: Connection, prefix: str) -> str | None:
    """Return the revision that the database records. A newer one is fine: it only adds.

    Raises:
        ConfigurationError: it is older than this release; says what to do.
    """
    there = revision_of(connection, prefix)
    if is_older(there):
        raise ConfigurationError(
            f"the tables {prefix}… are of revision {there}, this release needs {REVISION}: "
            "run reliable-mq migrate --app MODULE:OBJECT"
        )
    return there


def create_missing(connection: Connection, metadata: MetaData) -> list[str]:
    """Create the missing tables and indexes; return the names of the tables that were missing.

    A table and its indexes are several statements, and MySQL commits each. If a process dies
    between two of them, the next process continues.

    Raises:
        ConfigurationError: an existing table lacks a column; nothing was created.
    """
    found = differences(connection, metadata)
    for each in found:
        if each.kind == "column":
            raise ConfigurationError(
                f"{each}: the table is of another release, or not ours. If it is of another "
                "release of ours, run reliable-mq migrate --app MODULE:OBJECT"
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
    return [each.table for each in found if each.kind == "table"]


def create_and_note(connection: Connection, metadata: MetaData, prefix: str) -> list[str]:
    """Create what is missing, and record the revision; for users without Alembic.

    Return the names of the tables that were missing.

    Raises:
        ConfigurationError: existing tables are not of this release; nothing was created.
    """
    noted = check_revision(connection, prefix)
    made = create_missing(connection, metadata)
    if noted is None:
        versions = version_table(prefix)
        if not inspect(connection).has_table(versions.name):
            made.append(versions.name)
        versions.create(connection, checkfirst=True)
        connection.execute(insert(versions), {"version_num": REVISION})
    return made


def differences(connection: Connection, metadata: MetaData) -> list[SchemaDifference]:
    """Return what our tables lack in the database. Other tables and columns do not matter.

    All tables are asked about at once: PostgreSQL answers one question for each of its catalogs.
    """
    inspector, dialect = inspect(connection), connection.dialect.name
    there = set(inspector.get_table_names())
    ours = [table.name for table in metadata.sorted_tables if table.name in there]
    if not ours:  # without names, all tables that are there would be asked about
        return [SchemaDifference("table", table.name, "") for table in metadata.sorted_tables]
    columns = inspector.get_multi_columns(filter_names=ours)
    indexes = inspector.get_multi_indexes(filter_names=ours)
    uniques = inspector.get_multi_unique_constraints(filter_names=ours)
    primary = inspector.get_multi_pk_constraint(filter_names=ours)
    found: list[SchemaDifference] = []
    for table in metadata.sorted_tables:
        if table.name not in there:
            found.append(SchemaDifference("table", table.name, ""))
            continue
        place = (None, table.name)
        names = {column["name"] for column in columns[place]}
        found += [
            SchemaDifference("column", table.name, column.name)
            for column in table.columns
            if column.name not in names
        ]
        found += _missing_indexes(table, indexes[place], dialect)
        keys = [tuple(each["column_names"]) for each in uniques[place]]
        keys.append(tuple(primary[place]["constrained_columns"]))
        found += _missing_keys(table, indexes[place], keys)
    return found


def _missing_indexes(
    table: Table, indexes: Sequence[ReflectedIndex], dialect: str
) -> Iterator[SchemaDifference]:
    there = {(index["name"], tuple(index["column_names"])) for index in indexes}
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        columns = tuple(column.name for column in index.columns)
        if is_on(index, dialect) and (index.name, columns) not in there:
            yield SchemaDifference("index", table.name, f"{index.name} ({', '.join(columns)})")


def _missing_keys(
    table: Table, indexes: Sequence[ReflectedIndex], keys: Sequence[tuple[str | None, ...]]
) -> Iterator[SchemaDifference]:
    unique = {*keys, *(tuple(index["column_names"]) for index in indexes if index["unique"])}
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
def lock_tables(connection: Connection, prefix: str) -> Iterator[None]:
    """Keep other processes from changing these tables; the lock ends with the connection.

    SQLite has no such lock. There a transaction excludes the others, so related changes must be one
    transaction. Ends the transaction that is open on the connection.

    Raises:
        Unavailable: another process did not end within a minute.
    """
    name = f"reliable-mq tables {prefix}"
    family = dialect_family(connection.dialect.name)
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
        # MySQL's lock names are per server, so ours contains the database; at most 64 characters.
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
