"""Tables of resend and retention. Only the shape; statements: `sql_topics`, `sql_retention`."""

from sqlalchemy import Boolean, Column, Integer, MetaData, String, Table, false

from reliable_mq.database.sql_types import NOTE_LENGTH_MAX, PlainText, UtcDateTime


def resend_topic_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>resend_topic`: a row for each topic that was paused, or that sends failed to.

    `paused_until` null with `is_paused` is a pause that only a person ends. `failures` counts the
    sends in a row that failed; while `probe_time` is not null the topic is closed, and one
    scheduler probes then, for the `probes`-th time. See `topic_gate`.
    """
    name = f"{prefix}resend_topic"
    if name in metadata.tables:
        return metadata.tables[name]
    return Table(
        name,
        metadata,
        Column("topic", String(127), primary_key=True),
        Column("is_paused", Boolean, nullable=False, server_default=false()),
        Column("paused_until", UtcDateTime),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("probes", Integer, nullable=False, server_default="0"),
        Column("probe_time", UtcDateTime),
        Column("actor", PlainText(127), nullable=False, server_default=""),
        Column("note", PlainText(NOTE_LENGTH_MAX)),
        Column("update_date", UtcDateTime, nullable=False),
    )


ROWS_DUTY = "rows"
"""The duty of removing old rows: the one row of the table of retention."""


def retention_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>retention`: who removes old rows, and what may be gone.

    A message from before `stubs_removed_until` may be gone from the stubs, one from before
    `logs_removed_until` from the consume logs; these are kept longer, and whether a row there was
    removed or never was is a question of an effect. What changed at `reconciled_until` or later has
    not been reconciled, and stays; null: nobody reconciles in increments.
    """
    name = f"{prefix}retention"
    if name in metadata.tables:
        return metadata.tables[name]
    return Table(
        name,
        metadata,
        Column("duty", String(16), primary_key=True),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("stubs_removed_until", UtcDateTime, nullable=False),
        Column("logs_removed_until", UtcDateTime, nullable=False),
        Column("reconciled_until", UtcDateTime),
    )
