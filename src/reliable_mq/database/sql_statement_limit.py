"""Lets PostgreSQL end the statements of one transaction that take too long."""

from sqlalchemy import Connection, text


def limit_statements(connection: Connection, seconds: float) -> None:
    """Let the statements of this transaction end after `seconds`, on PostgreSQL.

    Other databases have no limit of one transaction; there, nothing is done.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL statement_timeout = {int(seconds * 1000)}"))
