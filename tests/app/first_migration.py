"""Writes the first migration from the tables; to be run as long as it is not released.

    python -m tests.app.first_migration

From the first release on migrations are written by hand, and this file goes.
"""

import re
from pathlib import Path
from typing import Any

from sqlalchemy import Boolean, Column, Dialect, False_, Index, Table, TextClause
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.type_api import TypeEngine

import reliable_mq.migrations
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import (
    MYSQL,
    PARTIAL_INDEXES,
    Body,
    GrowingNumber,
    LongText,
    PlainText,
    UtcDateTime,
)

FILE = Path(reliable_mq.migrations.__file__).parent / "versions" / "r0001_first_release.py"
PREFIX = "rmq_"
CONDITION_WIDTH_MAX = 70
HEAD = '''"""The tables of the first release.

Revision 0001, after none. Written by `python -m tests.app.first_migration`.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Numeric,
    SmallInteger,
    String,
    Table,
    false,
    text,
)

from reliable_mq.migrations.sql_steps import add_tables, partial
from reliable_mq.database.sql_types import (
    MYSQL,
    PARTIAL_INDEXES,
    Body,
    GrowingNumber,
    LongText,
    UtcDateTime,
    only_on,
)

revision = "0001"
down_revision = None


def upgrade(prefix: str) -> None:
    """Create the tables."""
    metadata = MetaData()
{calls}
    add_tables(metadata)
'''


def render() -> str:
    """Return the text of the migration."""
    database = Database("sqlite:///unused.db", prefix=PREFIX, connections=1)
    tables = database.metadata.sorted_tables
    names = [table.name.removeprefix(PREFIX) for table in tables]
    calls = "\n".join(f'    _{name}(metadata, f"{{prefix}}{name}")' for name in names)
    return HEAD.format(calls=calls) + "".join(map(_table, tables))


def _table(table: Table) -> str:
    columns = "".join(f"        {_column(column)},\n" for column in table.columns)
    indexes = sorted(table.indexes, key=lambda index: (str(index.name), "dialects" in index.info))
    indexes.sort(key=lambda index: index.info.get("dialects", ()))
    head = f"\n\ndef _{table.name.removeprefix(PREFIX)}(metadata: MetaData, name: str) -> None:\n"
    stored = table.dialect_options["postgresql"]["with"]
    options = f"        postgresql_with={stored!r},\n" if stored else ""
    body = f"    Table(\n        name,\n        metadata,\n{columns}{options}    )"
    if not indexes:
        return f"{head}{body}\n"
    lines = [f"    table = {body.lstrip()}", "    column = table.c"]
    for dialects, constant in (((), ""), (PARTIAL_INDEXES, "PARTIAL_INDEXES"), (MYSQL, "MYSQL")):
        group = [index for index in indexes if index.info.get("dialects", ()) == dialects]
        texts = [_index(table, index) for index in group]
        if not constant:
            lines += [f"    {each}" for each in texts]
        elif texts:
            inner = "".join(f"        {each},\n" for each in texts)
            lines.append(f"    only_on(\n        {constant},\n{inner}    )")
    return head + "\n".join(lines) + "\n"


def _column(column: Column[Any]) -> str:
    words = [f'"{column.name}"', _type(column.type)]
    if column.primary_key:
        words.append("primary_key=True")
        if column.autoincrement != "auto":
            words.append(f"autoincrement={column.autoincrement}")
    elif not column.nullable:
        words.append("nullable=False")
    if column.unique:
        words.append("unique=True")
    if column.server_default is not None:
        words.append(f"server_default={_default(column)}")
    return f"Column({', '.join(words)})"


def _type(kind: TypeEngine[Any]) -> str:
    for name, ours in (("GrowingNumber", GrowingNumber), ("Body", Body), ("LongText", LongText)):
        if kind is ours:
            return name
    if isinstance(kind, UtcDateTime):
        return "UtcDateTime"
    if isinstance(kind, PlainText):
        return f"String({kind.length})"
    return (
        "Boolean"
        if isinstance(kind, Boolean)
        else repr(kind).removesuffix("()").replace("length=", "")
    )


def _default(column: Column[Any]) -> str:
    given = column.server_default.arg  # type: ignore[union-attr]
    if isinstance(given, False_):
        return "false()"
    return f'text("{given.text}")' if isinstance(given, TextClause) else f'"{given}"'


def _index(table: Table, index: Index) -> str:
    suffix = str(index.name).removeprefix("ix_").removeprefix(table.name)
    name = f"ix_{{name}}{suffix}" if str(index.name).startswith("ix_") else f"{{name}}{suffix}"
    words = [f'f"{name}"', *(f"column.{column.name}" for column in index.columns)]
    if index.unique:
        words.append("unique=True")
    conditions = [_conditions(table, index, dialect.dialect()) for dialect in (postgresql, sqlite)]
    if any(conditions):
        pairs = zip(*conditions, strict=True)
        texts = [
            _quoted(one) if one == two else f"({_quoted(one)}, {_quoted(two)})"
            for one, two in pairs
        ]
        words.append(f"**partial({', '.join(texts)})")
    return f"Index({', '.join(words)})"


def _quoted(condition: str) -> str:
    """Return a condition as text of Python, in several where one would not fit into a line."""
    if len(condition) <= CONDITION_WIDTH_MAX:
        return f'"{condition}"'
    return "\n".join(f'"{each}"' for each in condition.replace(" OR ", " OR \n").splitlines())


def _conditions(table: Table, index: Index, dialect: Dialect) -> list[str]:
    """Return the parts of an index's condition, as a dialect says them."""
    where = index.dialect_options[dialect.name]["where"]
    if where is None:
        return []
    said = str(where.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    return re.split(r" AND (?![^(]*\))", said.replace(f"{table.name}.", "").replace('"', '\\"'))


if __name__ == "__main__":
    FILE.write_text(render())
