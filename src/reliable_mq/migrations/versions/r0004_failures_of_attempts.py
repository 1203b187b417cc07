"""The reason of the last failure in the consume log.

Revision 0004, after 0003.
"""

from sqlalchemy import Column, String

from reliable_mq.migrations.sql_steps import add_column

revision = "0004"
down_revision = "0003"


def upgrade(prefix: str) -> None:
    """Add the column."""
    add_column(f"{prefix}consume_log", Column("failure", String(1000)))
