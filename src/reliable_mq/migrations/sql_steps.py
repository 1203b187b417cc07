"""The steps of migrations. A step does nothing if it was done before."""

from typing import Any

from alembic import op
from sqlalchemy import Column, MetaData, inspect, text
from sqlalchemy.schema import CreateIndex, CreateTable

from reliable_mq.database.sql_schema import create_missing
from reliable_mq.database.sql_types import PARTIAL_INDEXES, dialect_family, is_on, table_options


def add_tables(metadata: MetaData) -> None:
    """Create the tables and indexes that do not exist."""
    context = op.get_context()
    if not context.as_sql:
        create_missing(op.get_bind(), metadata)
        return
    dialect = context.dialect
    for table in metadata.sorted_tables:
        table.dialect_kwargs.update(table_options(dialect))
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if is_on(index, dialect.name):
                op.execute(CreateIndex(index))


def add_column(table: str, column: Column[Any]) -> None:
    """Add a nullable column to a table, if it does not exist."""
    context = op.get_context()
    if not context.as_sql:
        there = {each["name"] for each in inspect(op.get_bind()).get_columns(table)}
        if column.name in there:
            return
    op.add_column(table, column)


def add_index(
    table: str, name: str, columns: list[str], condition: str = "", *, everywhere: bool = True
) -> None:
    """Add an index to a table, if it does not exist.

    Args:
        table: the table.
        name: the name of the index.
        columns: its columns.
        condition: the rows that it has, where there are partial indexes; "": all.
        everywhere: whether databases without partial indexes get it, too.
    """
    context = op.get_context()
    has_partial = dialect_family(context.dialect.name) in PARTIAL_INDEXES
    if not has_partial and not everywhere:
        return
    if not context.as_sql:
        there = {each["name"] for each in inspect(op.get_bind()).get_indexes(table)}
        if name in there:
            return
    some = partial(condition) if condition and has_partial else {}
    op.create_index(name, table, columns, **some)


def partial(*conditions: str | tuple[str, str]) -> dict[str, Any]:
    """Return the options of a partial index, for databases that have partial indexes.

    The index contains only rows for which all conditions hold.

    Args:
        *conditions: SQL conditions, written exactly as in the statements that use the index. If
            SQLite needs another text, give a pair: (usual, SQLite's).
    """
    both = [(each, each) if isinstance(each, str) else each for each in conditions]
    usual, sqlite = (" AND ".join(said) for said in zip(*both, strict=True))
    return {"postgresql_where": text(usual), "sqlite_where": text(sqlite)}
