"""The consume log (design, section 4). Only its shape; the statements are in `sql_consume_log`."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    and_,
    false,
    literal_column,
    or_,
)

from reliable_mq.database.row_values import LogState
from reliable_mq.database.sql_types import (
    NOTE_LENGTH_MAX,
    PARTIAL_INDEXES,
    LongText,
    PlainText,
    UtcDateTime,
    has_no_id_time,
    only_on,
)

__all__ = ["DEFAULT_PREFIX", "LogState", "consume_log_table", "consumed_rows", "free_keys"]

DEFAULT_PREFIX = "rmq_"
MEANINGS = {
    "consumer_group": "the consumer group",
    "message_id": "the message",
    "topic": "its topic",
    "broker_name": "the broker that delivered it",
    "queue_id": "its queue there",
    "offset": "its offset in the queue",
    "state": "0 received, 1 consumed",
    "attempt": "how many attempts began",
    "owner": "the process that handles it now; null: none",
    "lease_until": "when the owner's claim ends; without an owner: when the next attempt is due",
    "create_date": "when the first attempt began",
    "consume_date": "when the effect was committed",
    "confirm_to": "the topic of the stub's database, if that is another one",
    "confirm_time": "when the notice to that database is due; null: sent, or not needed",
    "note": "why an attempt was the last one; or the person by whom it was skipped, and why",
    "in_doubt": "an attempt ended in an unknown way: its effect elsewhere may have happened",
    "duplicate_of": (
        "the message that had the effect of the same business key; "
        "the message itself, and no owner: a person let it be skipped, and nothing had its effect"
    ),
    "failure": "the reason of the newest attempt without an effect",
    "failures": (
        "all attempts without an effect, a line for each: number, time, how it ended, reason; "
        "tabs between them; null: none"
    ),
}
"""What each column of the consume log means, for people who read it in SQL."""


def consume_log_table(
    metadata: MetaData, prefix: str = DEFAULT_PREFIX, *, by_day: bool = False
) -> Table:
    """Return the table `<prefix>consume_log`: one row per consumer group and message.

    `state` 1 (CONSUMED) is committed together with the effect and never changes again. `state` 0
    (RECEIVED) is an attempt. It is running while `owner` is set and `lease_until` is in the future,
    in doubt when `lease_until` has passed, and failed when `owner` is null; then the next attempt
    is awaited. `in_doubt` stays true after an attempt with an unknown end. A message with a
    `duplicate_of` had no effect: that one had it, by its business key, or a person skipped it.

    `confirm_to` names the topic where the stub's database, another one, reads notices (null: the
    stub is here, or there is none). After `confirm_time`, any process that finds the row sends the
    notice (null: it was sent). `note` says why an attempt was the last one. `failure` says why the
    newest of the attempts that had no effect failed, or asked to be called again. `failures` lists
    these attempts, see `attempt_list`; it is null if the first one had the effect.

    `by_day` partitions it by the time in the message id (PostgreSQL). The key stays unique.
    """
    name = f"{prefix}consume_log"
    if name in metadata.tables:
        return metadata.tables[name]
    table = Table(
        name,
        metadata,
        Column("consumer_group", String(127), primary_key=True),
        Column("message_id", String(64), primary_key=True),
        Column("topic", String(127), nullable=False),
        Column("broker_name", String(127), nullable=False),
        Column("queue_id", Integer, nullable=False),
        Column("offset", BigInteger, nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("create_date", UtcDateTime, nullable=False),
        Column("consume_date", UtcDateTime),
        Column("confirm_to", String(64)),
        Column("confirm_time", UtcDateTime),
        Column("note", PlainText(NOTE_LENGTH_MAX)),
        Column("in_doubt", Boolean, nullable=False, default=False, server_default=false()),
        Column("duplicate_of", String(64)),
        Column("failure", PlainText(NOTE_LENGTH_MAX)),
        Column("failures", LongText),
        postgresql_partition_by="RANGE (message_id)" if by_day else None,
    )
    for each, meaning in MEANINGS.items():
        table.c[each].doc = meaning
    untold = table.c.confirm_time.is_not(None)
    Index(f"{name}_untold", table.c.confirm_time, postgresql_where=untold, sqlite_where=untold)
    # Confirmation and the resend scheduler ask by message, over all groups.
    Index(f"{name}_message", table.c.message_id)
    # For retention: consumed rows, the oldest first.
    Index(
        f"{name}_consumed",
        table.c.consume_date,
        postgresql_where=consumed_rows(table),
        sqlite_where=consumed_rows(table),
    )
    # For reconciliation: attempts, and ids that do not begin with their time.
    no_time = has_no_id_time(table.c.message_id)
    for kind, rows in (("received", received_rows(table)), ("untimed", no_time)):
        some = Index(f"{name}_{kind}", table.c.message_id, postgresql_where=rows, sqlite_where=rows)
        only_on(PARTIAL_INDEXES, some)
    # For people: attempts that failed, of all groups or of one.
    failed = failed_rows(table)
    by_message = (table.c.message_id, table.c.consumer_group)
    some = Index(f"{name}_failed", *by_message, postgresql_where=failed, sqlite_where=failed)
    only_on(PARTIAL_INDEXES, some)
    return table


def consumed_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition for the rows of consumed messages.

    It uses a literal: a partial index serves only statements whose text has its condition.
    """
    return table.c.state == literal_column(str(LogState.CONSUMED.value))


def skipped_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition that `row_values.is_skipped` says of a row: a person settled it."""
    log = table.c
    return and_(consumed_rows(table), log.owner.is_(None), log.duplicate_of == log.message_id)


def unskipped_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition for the rows of consumed messages that no person let be skipped."""
    log = table.c
    of_another = or_(log.duplicate_of.is_(None), log.duplicate_of != log.message_id)
    return and_(consumed_rows(table), or_(log.owner.is_not(None), of_another))


def received_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition for the rows of messages that are not consumed yet."""
    return table.c.state == literal_column(str(LogState.RECEIVED.value))


def failed_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition for the rows of messages of which an attempt had no effect."""
    return table.c.failure.is_not(None)


def free_keys(table: Table) -> ColumnElement[bool]:
    """Return the condition for the rows of business keys under which no message had an effect.

    Their attempts failed. The row keeps that fact, and whether there is a doubt.
    """
    return and_(received_rows(table), table.c.owner.is_(None))
