"""The column and the index by which people find all messages of one request.

Revision 0008, after 0007. The column is null in all rows that are there: no row is written, and on
PostgreSQL and SQLite the new index is empty.
"""

from sqlalchemy import Column, String

from reliable_mq.migrations.sql_steps import add_column, add_index

revision = "0008"
down_revision = "0007"


def upgrade(prefix: str) -> None:
    """Add the column and its index."""
    stub = f"{prefix}message_stub"
    add_column(stub, Column("correlation_id", String(255)))
    columns = ["correlation_id", "seq"]
    add_index(stub, f"{stub}_correlation", columns, "correlation_id IS NOT NULL")
