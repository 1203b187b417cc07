"""Tables of resend and retention. Only their shape; statements: `sql_topics`, `sql_retention`."""

from sqlalchemy import Boolean, Column, Integer, MetaData, String, Table, false

from reliable_mq.database.sql_types import NOTE_LENGTH_MAX, PlainText, UtcDateTime


def resend_topic_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>resend_topic`: one row for each topic that was paused or had failed sends.

    If `is_paused` and `paused_until` is null, only a person ends the pause. `failures` counts
    consecutive failed sends. While `probe_time` is set, the topic is closed; at that time one
    scheduler probes it, for the `probes`-th time. See `topic_gate`.
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
"""The duty of removing old rows: the only row of the table of retention."""


def retention_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>retention`: which process removes old rows, and what may be removed already.

    A message from before `stubs_removed_until` may be missing in the stubs, and from before
    `logs_removed_until` in the consume logs. Consume logs are kept longer: a missing row there
    leaves open whether there was an effect. Changes at or after `reconciled_until` are not
    reconciled yet, so they stay; null: nobody reconciles in increments.
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
