"""The tables of keys: business keys of messages, and keys of idempotent calls.

Only their shape; the statements are in `sql_key_log` and `sql_calls`.
"""

from sqlalchemy import (
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    false,
)

from reliable_mq.database.row_values import SHOWN_LENGTH_MAX
from reliable_mq.database.sql_consume_log_table import free_keys
from reliable_mq.database.sql_types import Body, UtcDateTime

RESULT_SIZE_MAX = 1024 * 1024
"""The most bytes of a stored result. Each repeated call reads it, and the database keeps it."""


def business_key_table(metadata: MetaData, prefix: str) -> Table:
    """Return the table `<prefix>business_key`: one row per consumer group and business key.

    Its columns `state`, `attempt`, `owner`, `lease_until` and `in_doubt` work as in the consume
    log, in the same transactions. `message_id` is the message that had the effect or is being
    handled. `key_digest` is the SHA-256 of the key; `business_key` shows its beginning to people.
    """
    name = f"{prefix}business_key"
    if name in metadata.tables:
        return metadata.tables[name]
    table = Table(
        name,
        metadata,
        Column("consumer_group", String(127), primary_key=True),
        Column("key_digest", String(64), primary_key=True),
        Column("business_key", String(SHOWN_LENGTH_MAX), nullable=False),
        Column("message_id", String(64), nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("create_date", UtcDateTime, nullable=False),
        Column("consume_date", UtcDateTime),
        Column("in_doubt", Boolean, nullable=False, default=False, server_default=false()),
    )
    Index(f"{name}_message", table.c.message_id)  # a message's timeline names its key
    free = free_keys(table)
    Index(f"{name}_free", table.c.lease_until, postgresql_where=free, sqlite_where=free)
    return table


def idempotent_call_table(metadata: MetaData, prefix: str) -> Table:
    """Return the table `<prefix>idempotent_call`: one row per scope and key of a function's call.

    `state` 1: the call is done, and `result` holds its return value until `expire_date`. `state` 0:
    running while `owner` is set and `lease_until` is in the future, in doubt when `lease_until` has
    passed, failed when `owner` is null. `fingerprint` is the SHA-256 of the arguments that must not
    change.
    """
    name = f"{prefix}idempotent_call"
    if name in metadata.tables:
        return metadata.tables[name]
    table = Table(
        name,
        metadata,
        Column("scope", String(127), primary_key=True),
        Column("key_digest", String(64), primary_key=True),
        Column("call_key", String(SHOWN_LENGTH_MAX), nullable=False),
        Column("fingerprint", String(64)),
        Column("state", SmallInteger, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("in_doubt", Boolean, nullable=False, default=False, server_default=false()),
        Column("result", Body),
        Column("create_date", UtcDateTime, nullable=False),
        Column("finish_date", UtcDateTime),
        Column("expire_date", UtcDateTime, nullable=False),
    )
    Index(f"{name}_expired", table.c.expire_date)
    return table
