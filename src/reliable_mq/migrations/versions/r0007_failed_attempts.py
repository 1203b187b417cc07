"""The index by which people find attempts that failed, of all groups or of one.

Revision 0007, after 0006. Few rows are in it: a message that is consumed at once is not.
"""

from reliable_mq.migrations.sql_steps import add_index

revision = "0007"
down_revision = "0006"


def upgrade(prefix: str) -> None:
    """Create the index."""
    log = f"{prefix}consume_log"
    columns = ["message_id", "consumer_group"]
    add_index(log, f"{log}_failed", columns, "failure IS NOT NULL", everywhere=False)
