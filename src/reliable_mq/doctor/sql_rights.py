"""The rights in our tables that an application needs, and those that its account lacks.

Receives a connection and the tables; returns lacking rights, each with the statement that grants
it. The server is asked for each right: a try of one statement would only find the first.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from sqlalchemy import Connection, Executable, Table, delete, false, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import mysql_code

_SHOWN = 3
_DENIED = frozenset({1142, 1143})
"""Codes of MySQL: the account may not run this statement on a table, on a column."""


class LackingRight(NamedTuple):
    """Rights that an account lacks: what, on which tables or sequences, and the GRANT."""

    what: str
    names: tuple[str, ...]
    grant: str

    def __str__(self) -> str:
        shown = ", ".join(self.names[:_SHOWN])
        more = len(self.names) - _SHOWN
        return f"{self.what} on {shown}" + (f" and {more} more" if more > 0 else "")


def lacking_rights(connection: Connection, database: Database) -> list[LackingRight]:
    """Return the rights in our tables that the connection's account lacks.

    SELECT and INSERT in all, UPDATE except in the audit, DELETE where rows end, USAGE of sequences.
    Tables that are missing are left out. SQLite has no rights.
    """
    if database.dialect == "postgresql":
        return _of_postgresql(connection, database)
    if database.dialect == "mysql":
        return _of_mysql(connection, database)
    return []


def _needed(database: Database, table: Table) -> tuple[str, ...]:
    with_ends = (
        *(database.stubs, database.logs, database.confirmations, database.keys, database.calls),
        *(database.escalations, database.alerts, database.periodic_ticks, database.processes),
    )
    if table is database.audit:
        return ("SELECT", "INSERT")
    always = ("SELECT", "INSERT", "UPDATE")
    return (*always, "DELETE") if any(table is each for each in with_ends) else always


def _by_rights(found: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the lacking rights with the names that lack just these."""
    ordered = sorted((", ".join(rights), name) for name, rights in found.items() if rights)
    for rights, each in groupby(ordered, lambda pair: pair[0]):
        yield rights, tuple(name for _, name in each)


_MAY = text("SELECT has_table_privilege(to_regclass(quote_ident(:table)), :right)")
_ROLE = text("SELECT quote_ident(current_user)")
_SEQUENCE = text(
    # The default of a column is run by the role that inserts. An identity column needs no right.
    "SELECT pg_get_serial_sequence(a.attrelid::regclass::text, a.attname) FROM pg_attribute a "
    "WHERE a.attrelid = to_regclass(quote_ident(:table)) AND a.attname = :column "
    "AND a.attidentity = ''"
)
_MAY_USE = text("SELECT has_sequence_privilege(CAST(:sequence AS text), 'USAGE, UPDATE')")


def _of_postgresql(connection: Connection, database: Database) -> list[LackingRight]:
    role = connection.scalar(_ROLE)
    found: dict[str, tuple[str, ...]] = {}
    sequences: list[str] = []
    for name, table in database.metadata.tables.items():
        found[name] = tuple(
            right
            for right in _needed(database, table)
            if connection.scalar(_MAY, {"table": name, "right": right}) is False
        )
        if (numbered := table.autoincrement_column) is not None:
            column = {"table": name, "column": numbered.name}
            sequence = connection.scalar(_SEQUENCE, column)
            if sequence and not connection.scalar(_MAY_USE, {"sequence": sequence}):
                sequences.append(str(sequence))
    lacking = [
        LackingRight(rights, names, f"GRANT {rights} ON {', '.join(names)} TO {role}")
        for rights, names in _by_rights(found)
    ]
    if sequences:
        sequences.sort()
        grant = f"GRANT USAGE ON SEQUENCE {', '.join(sequences)} TO {role}"
        lacking.append(LackingRight("USAGE", tuple(sequences), grant))
    return lacking


def _of_mysql(connection: Connection, database: Database) -> list[LackingRight]:
    account = str(connection.exec_driver_sql("SELECT current_user()").scalar_one())
    user, _, host = account.rpartition("@")
    schema = connection.exec_driver_sql("SELECT database()").scalar_one()
    found = {
        name: tuple(
            right for right in _needed(database, table) if _is_denied(connection, table, right)
        )
        for name, table in database.metadata.tables.items()
    }
    lacking = []
    for rights, names in _by_rights(found):
        place = f"`{schema}`.{names[0] if len(names) == 1 else '*'}"
        grant = f"GRANT {rights} ON {place} TO '{user}'@'{host}'"
        lacking.append(LackingRight(rights, names, grant))
    return lacking


def _is_denied(connection: Connection, table: Table, right: str) -> bool:
    try:
        with connection.begin_nested():
            connection.execute(statement_without_rows(table, right))
    except DBAPIError as error:
        return mysql_code(error) in _DENIED and f"{right} command denied" in str(error.orig)
    return False


def statement_without_rows(table: Table, right: str) -> Executable:
    """Return a statement that needs the right and changes nothing."""
    own = [each for each in table.c if each is not table.autoincrement_column]
    if right == "INSERT":
        nothing = select(*own).where(false())
        return insert(table).from_select(own, nothing, include_defaults=False)
    if right == "UPDATE":
        return update(table).where(false()).values({own[0]: own[0]})
    if right == "DELETE":
        return delete(table).where(false())
    return select(table).where(false())
