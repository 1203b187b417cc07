"""The tables of periodic messages. Only their shape; the statements are in `periodic.sql_ticks`."""

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table

from reliable_mq.database.sql_types import NOTE_LENGTH_MAX, PlainText, UtcDateTime


def periodic_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>periodic`: one row for each periodic message of an application.

    Whoever locks the row may fire its ticks. Every tick up to `decided_until` was fired or skipped.
    `fired` counts the fired ticks, `last_tick` is the newest of them, and `fire_date` is when that
    happened. After `failures` failed tries in a row, the next one may begin at `retry_time`; `note`
    has the last error.
    """
    name = f"{prefix}periodic"
    if name in metadata.tables:
        return metadata.tables[name]
    return Table(
        name,
        metadata,
        Column("application", String(127), primary_key=True),
        Column("name", String(127), primary_key=True),
        Column("schedule", PlainText(NOTE_LENGTH_MAX), nullable=False),
        Column("decided_until", UtcDateTime, nullable=False),
        Column("fired", BigInteger, nullable=False, server_default="0"),
        Column("last_tick", UtcDateTime),
        Column("last_message_id", String(32)),
        Column("fire_date", UtcDateTime),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("retry_time", UtcDateTime),
        Column("note", PlainText(NOTE_LENGTH_MAX)),
        Column("create_date", UtcDateTime, nullable=False),
        Column("update_date", UtcDateTime, nullable=False),
    )


def periodic_tick_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>periodic_tick`: each row is a tick that was fired.

    It is committed together with the stubs of the tick. So a tick is not fired twice, whatever the
    clock does. `number` counts the ticks of one periodic message: the newest are kept. `messages`
    is how many stubs the tick wrote, `message_id` names the first (null: there was none).
    """
    name = f"{prefix}periodic_tick"
    if name in metadata.tables:
        return metadata.tables[name]
    table = Table(
        name,
        metadata,
        Column("application", String(127), primary_key=True),
        Column("name", String(127), primary_key=True),
        Column("tick_time", UtcDateTime, primary_key=True),
        Column("number", BigInteger, nullable=False),
        Column("messages", Integer, nullable=False),
        Column("message_id", String(32)),
        Column("fire_date", UtcDateTime, nullable=False),
    )
    column = table.c
    Index(f"{name}_number", column.application, column.name, column.number)
    return table
