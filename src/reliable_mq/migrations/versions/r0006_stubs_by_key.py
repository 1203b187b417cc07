"""The indexes by which people find stubs: by business key, and voided ones.

Revision 0006, after 0005. An index that exists already is left: on a large table of PostgreSQL a
person makes it beforehand, with CREATE INDEX CONCURRENTLY.
"""

from reliable_mq.migrations.sql_steps import add_index

revision = "0006"
down_revision = "0005"


def upgrade(prefix: str) -> None:
    """Create the indexes."""
    stub = f"{prefix}message_stub"
    settled = "status IN (1, 2) AND message_key != ''"
    add_index(stub, f"{stub}_key", ["message_key"], settled)
    add_index(stub, f"{stub}_voided", ["seq"], "status = 2", everywhere=False)
    escalation = f"{prefix}escalation"
    add_index(escalation, f"{escalation}_key", ["message_key"])
