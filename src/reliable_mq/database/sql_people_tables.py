"""The tables of whom a person was told of, and of what a person did. Only their shape.

Statements are in `sql_escalations` (what a person must know), `sql_stuck` (what is found by looking
for it), `sql_alerts` (who was told of it), `sql_audit` (what was changed by hand or by repair).
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
"""A kind, a consumer group of 127 characters, and a topic of 127."""


def escalation_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>escalation`: a row is something that a person must know.

    It is committed together with what it tells of. `open_key` (kind, consumer group, message id)
    is null as soon as it is closed: being unique, it lets the same thing be told once, and again
    when it happens again after a retry.
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
    # Who tells looks for what is open in the order of rows, retention for what was closed long ago.
    Index(f"{name}_closed", table.c.close_date, table.c.seq)
    return table


def alert_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>alert`: a row is an escalation that a notifier has told, or is telling.

    `state` is an `AlertState`. The rows of one `digest_id` are told together, and together again
    when nobody knows whether they arrived.
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
    """Return `<prefix>notifier`: one row for each notifier, the same for all processes.

    Who tells holds it by `owner` until `lease_until`. `digest_id` is the digest that is being told
    since `digest_time`; `next_time` is when the next attempt or the next digest may begin.
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
    """Return `<prefix>duty`: whose turn it is to do what one instance does, now and then.

    Who moves `next_time`, when it has come, has the turn; who dies meanwhile has lost it.
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
    """Return `<prefix>audit`: what was changed by hand or by repair, by whom and why.

    `changed` is 1 where the change was made, 0 where something stood against it. `detail` is a
    JSON object. An id that is longer than any message's, because somebody asked for it, is cut.
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
