"""The list of attempts without an effect in the consume log.

Revision 0005, after 0004.
"""

from sqlalchemy import Column

from reliable_mq.database.sql_types import LongText
from reliable_mq.migrations.sql_steps import add_column

revision = "0005"
down_revision = "0004"


def upgrade(prefix: str) -> None:
    """Add the column."""
    add_column(f"{prefix}consume_log", Column("failures", LongText))
