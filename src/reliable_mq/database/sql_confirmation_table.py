"""The table of confirmations: notices from other databases' consumer groups. Only its shape.

Statements are in `sql_confirmation` (which stubs are complete) and `sql_notices` (notices).
"""

from sqlalchemy import Column, Index, Integer, MetaData, SmallInteger, String, Table

from reliable_mq.database.sql_types import PARTIAL_INDEXES, UtcDateTime, has_no_id_time, only_on

__all__ = ["confirmation_table"]


def confirmation_table(metadata: MetaData, prefix: str) -> Table:
    """Return the table `<prefix>confirmation`: consume logs elsewhere, as far as notices report.

    `state` 1 (CONSUMED) is final. `state` 0 (RECEIVED) is a failed attempt. The next attempt is
    expected at `lease_until`; null: no further attempt. `notices` counts the notices.
    """
    name = f"{prefix}confirmation"
    if name in metadata.tables:
        return metadata.tables[name]
    table = Table(
        name,
        metadata,
        Column("message_id", String(32), primary_key=True),
        Column("consumer_group", String(127), primary_key=True),
        Column("state", SmallInteger, nullable=False),
        Column("lease_until", UtcDateTime),
        Column("notices", Integer, nullable=False),
        Column("create_date", UtcDateTime, nullable=False),
        Column("update_date", UtcDateTime, nullable=False),
    )
    # For reconciliation: rows that it has not seen yet, the groups, and ids that do not begin with
    # their time.
    Index(f"{name}_updated", table.c.update_date)
    Index(f"{name}_group", table.c.consumer_group)
    untimed = has_no_id_time(table.c.message_id)
    some = Index(
        f"{name}_untimed", table.c.message_id, postgresql_where=untimed, sqlite_where=untimed
    )
    only_on(PARTIAL_INDEXES, some)
    return table
