"""The table of stubs (design, section 4). Only the shape; statements are in `sql_stubs`."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    and_,
    false,
)

from reliable_mq.outbox.stub import TEXT_LENGTH_MAX
from reliable_mq.sql_types import UtcDateTime

DEFAULT_PREFIX = "rmq_"

# SQLite makes only a column of exactly type INTEGER grow by itself.
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")


def message_stub_table(metadata: MetaData, prefix: str = DEFAULT_PREFIX) -> Table:
    """Return the table `<prefix>message_stub`: a row is a message that a transaction committed.

    `resend_time` is null when nothing is to be done by itself: the stub was settled, or it was
    escalated and waits for a person. `given_up` says that a consumer group made a dead letter of
    it: nothing is sent any more, however many sends are left. `content` is byte for byte the body
    that is sent.
    """
    name = f"{prefix}message_stub"
    if name in metadata.tables:
        return metadata.tables[name]
    table = Table(
        name,
        metadata,
        Column("seq", _SEQUENCE, primary_key=True, autoincrement=True),
        Column("message_id", String(32), nullable=False, unique=True),
        Column("topic", String(127), nullable=False),
        Column("tag", String(TEXT_LENGTH_MAX), nullable=False, server_default=""),
        Column("message_key", String(TEXT_LENGTH_MAX), nullable=False, server_default=""),
        Column("ordering_key", String(TEXT_LENGTH_MAX), nullable=False, server_default=""),
        Column("content", LargeBinary, nullable=False),
        Column("content_type", String(127), nullable=False, server_default=""),
        Column("properties", Text, nullable=False, server_default="{}"),
        Column("status", SmallInteger, nullable=False, server_default="0"),
        Column("count", Integer, nullable=False, server_default="0"),
        Column("resend_time", UtcDateTime),
        Column("given_up", Boolean, nullable=False, server_default=false()),
        Column("broker_name", String(127)),
        Column("queue_id", Integer),
        Column("offset", BigInteger),
        Column("required_groups", Text, nullable=False, server_default=""),
        Column("deliver_time", UtcDateTime),
        Column("create_date", UtcDateTime, nullable=False),
        Column("update_date", UtcDateTime, nullable=False),
        Column("note", Text),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
    )
    column = table.c
    waiting = and_(column.status == 0, column.resend_time.is_not(None))
    Index(f"{name}_due", column.resend_time, postgresql_where=waiting, sqlite_where=waiting)
    # A backlog is due again and again: what was never sent must be found without reading it.
    unsent = and_(waiting, column.broker_name.is_(None))
    Index(f"{name}_unsent", column.resend_time, postgresql_where=unsent, sqlite_where=unsent)
    ordered = and_(column.status == 0, column.ordering_key != "")
    Index(
        f"{name}_ordered",
        column.topic,
        column.ordering_key,
        column.broker_name,
        column.seq,
        postgresql_where=ordered,
        sqlite_where=ordered,
    )
    return table
