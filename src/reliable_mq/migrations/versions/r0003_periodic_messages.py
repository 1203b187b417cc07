"""The tables of periodic messages.

Revision 0003, after 0002.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table

from reliable_mq.database.sql_types import UtcDateTime
from reliable_mq.migrations.sql_steps import add_tables

revision = "0003"
down_revision = "0002"


def upgrade(prefix: str) -> None:
    """Create the tables."""
    metadata = MetaData()
    Table(
        f"{prefix}periodic",
        metadata,
        Column("application", String(127), primary_key=True),
        Column("name", String(127), primary_key=True),
        Column("schedule", String(1000), nullable=False),
        Column("decided_until", UtcDateTime, nullable=False),
        Column("fired", BigInteger, nullable=False, server_default="0"),
        Column("last_tick", UtcDateTime),
        Column("last_message_id", String(32)),
        Column("fire_date", UtcDateTime),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("retry_time", UtcDateTime),
        Column("note", String(1000)),
        Column("create_date", UtcDateTime, nullable=False),
        Column("update_date", UtcDateTime, nullable=False),
    )
    name = f"{prefix}periodic_tick"
    tick = Table(
        name,
        metadata,
        Column("application", String(127), primary_key=True),
        Column("name", String(127), primary_key=True),
        Column("tick_time", UtcDateTime, primary_key=True),
        Column("number", BigInteger, nullable=False),
        Column("messages", Integer, nullable=False),
        Column("message_id", String(32)),
        Column("fire_date", UtcDateTime, nullable=False),
    )
    Index(f"{name}_number", tick.c.application, tick.c.name, tick.c.number)
    add_tables(metadata)
