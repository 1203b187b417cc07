"""Creates our tables as they were created before: a thousand tests want them in an empty database.

Working out what is missing, and compiling it, takes a third of a second; the statements that came
of it are the same each time, so the first database of a process is made by the product, and the
others by its statements. PostgreSQL may have them of an earlier test: see `tests.parked_tables`.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, MetaData, event, inspect
from tests import parked_tables

Create = Callable[[Connection, MetaData, str], list[str]]


def recorded(create: Create) -> Create:
    """Return what does the same as `create` and asks it only once for each form of tables."""
    scripts: dict[object, tuple[list[tuple[str, Any]], list[str]]] = {}

    def create_quickly(connection: Connection, metadata: MetaData, prefix: str) -> list[str]:
        form = (connection.dialect.name, prefix, _form_of(metadata))
        is_new = is_back = False
        if connection.dialect.name == "postgresql":
            is_new, is_back = parked_tables.seen(connection, form)
        if not is_new and set(metadata.tables) & set(inspect(connection).get_table_names()):
            return create(connection, metadata, prefix)
        if form in scripts:
            for statement, parameters in scripts[form][0]:
                if not is_back or statement.startswith("INSERT"):
                    connection.exec_driver_sql(statement, parameters)
        else:
            scripts[form] = _recorded(create, connection, metadata, prefix)
        if is_new and not is_back:
            parked_tables.note(connection, form)
        return list(scripts[form][1])

    return create_quickly


def _form_of(metadata: MetaData) -> object:
    return tuple(
        (table.name, len(table.columns), len(table.indexes), str(dict(table.dialect_kwargs)))
        for table in metadata.sorted_tables
    )


def _recorded(
    create: Create, connection: Connection, metadata: MetaData, prefix: str
) -> tuple[list[tuple[str, Any]], list[str]]:
    """Create the tables; return the statements of it, and the names of the tables."""
    said: list[tuple[str, Any]] = []

    def listen(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.split(maxsplit=1)[0] in {"CREATE", "INSERT"}:
            said.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", listen)
    try:
        made = create(connection, metadata, prefix)
    finally:
        event.remove(connection, "before_cursor_execute", listen)
    return said, made
