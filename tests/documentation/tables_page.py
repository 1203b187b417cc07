"""The reference page of tables, from the definitions that create them."""

import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from sqlalchemy import Column, MetaData, Table
from sqlalchemy.dialects import postgresql
from tests.documentation.column_meanings import meaning_of
from tests.documentation.declared import as_sentence, code, summary, table

import reliable_mq.database
from reliable_mq.database.sql_schema import REVISION, version_table
from reliable_mq.database.sql_stub_table import DEFAULT_PREFIX

HEAD = f"""# Tables

`mq.create_tables()`, `reliable-mq create-tables` and `reliable-mq migrate` make these tables
beside yours. Their names begin with the setting `table_prefix` (`{DEFAULT_PREFIX}`). Types are
PostgreSQL's; MySQL, MariaDB and SQLite have the nearest ones. Times are UTC, by the database's
clock.

The revision of this release is `{REVISION}`, in `{DEFAULT_PREFIX}schema_version`. This page is made
from `reliable_mq.database`.

- **Read** any table. Columns may be added in later releases.
- **Write** rows of `{DEFAULT_PREFIX}message_stub` in plain SQL where you need it, see
  [messages from plain SQL](../how-to/plain_sql.md). Leave the other tables to this package.
"""


def builders() -> Iterator[tuple[str, str]]:
    """Yield the suffix of a table's name, and the docstring of the function that makes it."""
    for each in iter_modules(reliable_mq.database.__path__):
        module = import_module(f"reliable_mq.database.{each.name}")
        for name, function in vars(module).items():
            made_here = getattr(function, "__module__", "") == module.__name__
            if name.endswith("_table") and made_here and function.__doc__:
                found = re.search(r"`<prefix>(\w+)`", function.__doc__)
                if found:
                    yield found[1], summary(function)


def tables() -> dict[str, Table]:
    """Return all our tables, by name."""
    from reliable_mq.database.sql_database import Database

    made = Database("sqlite:///unused.db", prefix=DEFAULT_PREFIX, connections=1)
    versions = version_table(DEFAULT_PREFIX).to_metadata(MetaData())
    return {**dict(sorted(made.metadata.tables.items())), versions.name: versions}


def page() -> str:
    """Return the page: each table with its purpose, columns and indexes."""
    texts = dict(builders())
    parts = [HEAD]
    for name, each in tables().items():
        purpose = texts.get(name.removeprefix(DEFAULT_PREFIX), "")
        parts.append(f"## {name}\n\n{_purpose(purpose)}\n\n{_columns(each)}")
    return "\n".join(parts)


def _purpose(text: str) -> str:
    """Return a docstring without the words about the function itself."""
    text = re.sub(r"^Return (the table )?`<prefix>\w+`(: |, )?", "", text)
    text = re.sub(r"^which (?=has)", "It ", text)
    paragraphs = [" ".join(each.split()) for each in text.split("\n\n")]
    return "\n\n".join(each[:1].upper() + each[1:] for each in paragraphs if each)


def _columns(found: Table) -> str:
    short = found.name.removeprefix(DEFAULT_PREFIX)
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    rows = []
    for column in found.columns:
        kind = column.type.compile(dialect=dialect)
        rows.append(
            [
                code(column.name),
                code(kind.lower()),
                _rules(column),
                code(_default(column)),
                as_sentence(column.doc or meaning_of(short, column.name)),
            ]
        )
    if not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
        return table(("column", "type", "", "default"), rows)
    return table(("column", "type", "", "default", "meaning"), rows)


def _rules(column: Column[object]) -> str:
    words = []
    if column.primary_key:
        words.append("key")
    if column.unique:
        words.append("unique")
    if column.nullable:
        words.append("may be null")
    return ", ".join(words)


def _default(column: Column[object]) -> str:
    given = column.server_default
    shown = getattr(given, "arg", None)
    if shown is None:
        return ""
    text = str(getattr(shown, "text", shown))
    return text.removeprefix("(").removesuffix(")") if text.startswith("(") else text or "''"
