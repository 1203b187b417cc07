"""The table in which retention stores its watched time (P7).

Revision 0002, after 0001.
"""

from sqlalchemy import Column, MetaData, SmallInteger, Table

from reliable_mq.database.sql_types import LongText
from reliable_mq.migrations.sql_steps import add_tables

revision = "0002"
down_revision = "0001"


def upgrade(prefix: str) -> None:
    """Create the table."""
    metadata = MetaData()
    Table(
        f"{prefix}watched_time",
        metadata,
        Column("number", SmallInteger, primary_key=True, autoincrement=False),
        Column("known", LongText, nullable=False),
    )
    add_tables(metadata)
