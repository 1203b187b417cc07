"""The tables of escalations, alerts, notifiers, duties and the audit. Only their shape.

Statements are in `sql_escalations` (what a person must know), `sql_stuck` (the search for stuck
stubs), `sql_alerts` (which notifiers reported it), `sql_audit` (changes by hand or by repair).
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
)

from reliable_mq.database.row_values import NOTIFIER_LENGTH_MAX
from reliable_mq.database.sql_types import (
    NOTE_LENGTH_MAX,
    GrowingNumber,
    LongText,
    PlainText,
    UtcDateTime,
)

ACTOR_LENGTH_MAX = 127
OPEN_KEY_LENGTH_MAX = 300
"""A kind, a consumer group of 127 characters, and a topic of 127 characters."""


def escalation_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>escalation`: each row is something that a person must know.

    It is committed together with the fact that it reports. `open_key` (kind, consumer group,
    message id) is unique, and null when the escalation is closed. So the same fact is reported
    once, and again if it happens again after a retry.
    """
    name = f"{prefix}escalation"
    if name in metadata.tables:
        return metadata.tables[name]
    table = Table(
        name,
        metadata,
        Column("seq", GrowingNumber, primary_key=True, autoincrement=True),
        Column("kind", String(32), nullable=False),
        Column("message_id", String(64), nullable=False, index=True),
        Column("consumer_group", String(127), nullable=False, server_default=""),
        Column("topic", String(127), nullable=False),
        Column("message_key", String(255), nullable=False, server_default=""),
        Column("reason", PlainText(NOTE_LENGTH_MAX), nullable=False),
        Column("open_key", String(OPEN_KEY_LENGTH_MAX), unique=True),
        Column("create_date", UtcDateTime, nullable=False),
        Column("close_date", UtcDateTime),
        Column("close_reason", String(32)),
    )
    # Notifiers read open rows in the order of rows; retention reads rows that were closed long ago.
    Index(f"{name}_closed", table.c.close_date, table.c.seq)
    # For people: those of a business key.
    Index(f"{name}_key", table.c.message_key)
    return table


def alert_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>alert`: each row is an escalation that a notifier has sent, or is sending.

    `state` is an `AlertState`. The rows of one `digest_id` are sent together. If it is unknown
    whether they arrived, they are sent together again.
    """
    name = f"{prefix}alert"
    if name in metadata.tables:
        return metadata.tables[name]
    table = Table(
        name,
        metadata,
        Column("escalation_seq", BigInteger, primary_key=True, autoincrement=False),
        Column("notifier", String(NOTIFIER_LENGTH_MAX), primary_key=True),
        Column("state", SmallInteger, nullable=False, server_default="0"),
        Column("digest_id", String(32)),
        Column("told_date", UtcDateTime),
    )
    column = table.c
    Index(f"{name}_state", column.state, column.notifier, column.escalation_seq)
    Index(f"{name}_digest", column.digest_id)
    return table


def notifier_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>notifier`: one row for each notifier, shared by all processes.

    The process that sends is its `owner` until `lease_until`. `digest_id` is the digest that is
    being sent since `digest_time`. `next_time` is when the next attempt or digest may begin.
    """
    name = f"{prefix}notifier"
    if name in metadata.tables:
        return metadata.tables[name]
    return Table(
        name,
        metadata,
        Column("name", String(NOTIFIER_LENGTH_MAX), primary_key=True),
        Column("next_time", UtcDateTime, nullable=False),
        Column("digest_id", String(32)),
        Column("digest_time", UtcDateTime),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("told_date", UtcDateTime),
        Column("note", PlainText(NOTE_LENGTH_MAX)),
    )


def duty_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>duty`: the next turn of each duty that one process at a time does.

    The process that moves a due `next_time` has the turn. If it dies, this turn is lost.
    """
    name = f"{prefix}duty"
    if name in metadata.tables:
        return metadata.tables[name]
    return Table(
        name,
        metadata,
        Column("duty", String(16), primary_key=True),
        Column("next_time", UtcDateTime, nullable=False),
    )


def audit_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>audit`: changes by hand or by repair, with person and reason.

    `changed` is 1 if the change was made, 0 if something prevented it. `detail` is a JSON object.
    An id in a request that is longer than any message's id is cut.
    """
    name = f"{prefix}audit"
    if name in metadata.tables:
        return metadata.tables[name]
    return Table(
        name,
        metadata,
        Column("seq", GrowingNumber, primary_key=True, autoincrement=True),
        Column("create_date", UtcDateTime, nullable=False),
        Column("actor", PlainText(ACTOR_LENGTH_MAX), nullable=False),
        Column("action", String(32), nullable=False),
        Column("message_id", PlainText(64), nullable=False, index=True),
        Column("run_id", String(32)),
        Column("changed", SmallInteger, nullable=False),
        Column("detail", LongText, nullable=False),
    )
