"""The table of stubs (design, section 4). Only its shape; the statements are in `sql_stubs`."""

from collections.abc import Iterator
from typing import Any

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
    not_,
    or_,
    text,
)

from reliable_mq.database.row_values import TEXT_LENGTH_MAX, StubStatus
from reliable_mq.database.sql_types import (
    MYSQL,
    NOTE_LENGTH_MAX,
    PARTIAL_INDEXES,
    Body,
    GrowingNumber,
    LongText,
    PlainText,
    UtcDateTime,
    has_no_id_time,
    only_on,
)

DEFAULT_PREFIX = "rmq_"

MEANINGS = {
    "seq": "the order of rows, and so of an ordering key; drawn by the database",
    "message_id": "32 characters of a-z A-Z 0-9 _ -; ours begin with their time",
    "topic": "the topic",
    "tag": "a word by which consumers filter",
    "message_key": "the key by which people find the message",
    "ordering_key": "messages with one key are handled in the order of `seq`; empty: no order",
    "content": "the body, byte for byte as it is sent",
    "content_type": "the media type of the body; empty: the handler's type decides",
    "properties": "a JSON object of texts: the user properties",
    "status": "0 unconfirmed, 1 confirmed, 2 voided",
    "count": "how often it was sent",
    "resend_time": "when it is due to be sent again; null: nothing happens by itself",
    "given_up": "no group is waited for any more",
    "given_up_by": "the groups that made it a dead letter, with commas between them",
    "missed": "left to the resend scheduler: no relay sends it",
    "broker_name": "the broker that stored it last; null: none has",
    "queue_id": "its queue there",
    "offset": "its offset in the queue",
    "required_groups": "the groups that must consume it, sorted, with commas between them",
    "deliver_time": "when it is to arrive; null: at once",
    "create_date": "when the transaction wrote it",
    "update_date": "when the row changed last",
    "note": "the last error, or a person's reason",
    "owner": "the process that sends it now; null: none",
    "lease_until": "when the owner's claim ends",
    "correlation_id": "what messages of one request have in common; null: nothing",
}
"""What each column of the table of stubs means, for people who read or write it in SQL."""

UNCONFIRMED: ColumnElement[int] = literal_column(str(StubStatus.UNCONFIRMED.value))
"""A literal: a database uses a partial index only if the text of a statement has its condition."""
_SETTLED = (str(StubStatus.CONFIRMED.value), str(StubStatus.VOIDED.value))


def message_stub_table(
    metadata: MetaData, prefix: str = DEFAULT_PREFIX, *, by_day: bool = False
) -> Table:
    """Return the table `<prefix>message_stub`: each row is a message that a transaction committed.

    `resend_time` is null when nothing happens automatically: the stub is settled, or it was
    escalated and waits for a person. `given_up_by` names the required groups that made it a dead
    letter; each is escalated in the same commit. `given_up`: no other group is waited for, so
    nothing is sent any more, however many sends are left. `missed`: no relay sends it any more,
    because a scheduler has taken it over or a person wants it sent again. `content` is byte for
    byte the body that is sent. `by_day` partitions it by the time in the message id (PostgreSQL).
    """
    name = f"{prefix}message_stub"
    if name in metadata.tables:
        return metadata.tables[name]
    table = Table(
        name,
        metadata,
        Column("seq", GrowingNumber, primary_key=True, autoincrement=True),
        # The key of a partitioned table must contain the partition column; both are unique anyway.
        Column("message_id", String(32), nullable=False, unique=True, primary_key=by_day),
        Column("topic", String(127), nullable=False),
        Column("tag", String(TEXT_LENGTH_MAX), nullable=False, server_default=""),
        Column("message_key", String(TEXT_LENGTH_MAX), nullable=False, server_default=""),
        Column("ordering_key", String(TEXT_LENGTH_MAX), nullable=False, server_default=""),
        Column("content", Body, nullable=False),
        Column("content_type", String(127), nullable=False, server_default=""),
        Column("properties", LongText, nullable=False, server_default=text("('{}')")),
        Column("status", SmallInteger, nullable=False, server_default="0"),
        Column("count", Integer, nullable=False, server_default="0"),
        Column("resend_time", UtcDateTime),
        Column("given_up", Boolean, nullable=False, server_default=false()),
        Column("given_up_by", LongText, nullable=False, server_default=text("('')")),
        Column("missed", Boolean, nullable=False, server_default=false()),
        Column("broker_name", String(127)),
        Column("queue_id", Integer),
        Column("offset", BigInteger),
        Column("required_groups", LongText, nullable=False, server_default=text("('')")),
        Column("deliver_time", UtcDateTime),
        Column("create_date", UtcDateTime, nullable=False),
        Column("update_date", UtcDateTime, nullable=False),
        Column("note", PlainText(NOTE_LENGTH_MAX)),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("correlation_id", String(TEXT_LENGTH_MAX)),
        postgresql_partition_by="RANGE (message_id)" if by_day else None,
        # Every stub is written three times within a second, then most rows never change. Dead rows
        # must be removed before they are a fifth of the table. (Partitions are small.)
        postgresql_with={} if by_day else {"autovacuum_vacuum_scale_factor": 0.02},
    )
    for each, meaning in MEANINGS.items():
        table.c[each].doc = meaning
    _make_indexes(table)
    return table


def _make_indexes(table: Table) -> None:
    """Give the table its indexes, each for the rows of one kind of query.

    MySQL has no partial indexes: there, the condition's columns begin the index.
    """
    name, column = table.name, table.c
    # Each kind of waiting stubs has its own index by topic: a scheduler finds the due stubs of one
    # topic without reading other topics' stubs, however many wait.
    for kind, condition in waiting_kinds(table).items():
        columns = (column.topic, column.resend_time, column.seq)
        _index(f"{name}_{kind}", condition, *columns)
    # For stuck stubs: the old ones among all waiting stubs of a topic.
    _index(f"{name}_waiting", waiting_rows(table), column.topic, column.create_date)
    # For retention: settled stubs, the oldest first.
    _index(f"{name}_settled", settled_rows(table), column.update_date)
    # For shared relays: unowned stubs, neither sent nor missed. Owned stubs do not load this index.
    _index(f"{name}_unowned", unowned_rows(table), column.resend_time, column.seq)
    # For reconciliation: which topics exist.
    _index(f"{name}_topic", settled_rows(table), column.topic)
    # For reconciliation, too: rows that no other index or range of ids finds. A stub that waits for
    # a person or has an unknown status is in no index of waiting stubs. An id that does not begin
    # with its time is in no range of ids. There are few of them, or none.
    _index(f"{name}_parked", parked_rows(table), column.update_date)
    _index(f"{name}_untimed", has_no_id_time(column.message_id), column.message_id)
    # For people: the settled messages of a business key, and voided stubs, of which there are few.
    # An order writes the first one once: a stub that waits is in an index of waiting stubs.
    _index(f"{name}_key", keyed_rows(table), column.message_key)
    _index(f"{name}_voided", voided_rows(table), column.seq)
    # For people, too: the messages of one request. Its column is null in an ordinary order.
    _index(f"{name}_correlation", correlated_rows(table), column.correlation_id, column.seq)
    ordered = and_(column.status == 0, column.ordering_key != "")
    by_key = (column.topic, column.ordering_key, column.broker_name, column.seq)
    _index(f"{name}_ordered", ordered, *by_key)
    only_on(MYSQL, *_whole_indexes(table))


def _index(name: str, where: ColumnElement[bool], *columns: Column[Any]) -> None:
    only_on(PARTIAL_INDEXES, Index(name, *columns, postgresql_where=where, sqlite_where=where))


def _whole_indexes(table: Table) -> Iterator[Index]:
    name, column = table.name, table.c
    when = (column.resend_time, column.seq)
    unsent = (column.status, column.given_up, column.broker_name)
    yield Index(f"{name}_unsent", *unsent, column.topic, *when)
    yield Index(f"{name}_sent", column.status, column.given_up, column.topic, *when)
    # Also by count: among few owners, this finds begun sends without reading all waiting stubs.
    yield Index(f"{name}_unowned", *unsent, column.missed, column.owner, column.count, *when)
    yield Index(f"{name}_waiting", column.status, column.topic, column.create_date)
    yield Index(f"{name}_settled", column.update_date)
    yield Index(f"{name}_key", column.message_key)
    yield Index(f"{name}_correlation", column.correlation_id, column.seq)
    key = (column.topic, column.ordering_key, column.status)
    yield Index(f"{name}_ordered", *key, column.broker_name, column.seq)


def waiting_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition: stubs that are unsettled and do not wait for a person."""
    column = table.c
    unsettled = column.status == literal_column("0")
    return and_(unsettled, column.resend_time.is_not(None), not_(column.given_up))


def waiting_kinds(table: Table) -> dict[str, ColumnElement[bool]]:
    """Return the condition of each kind of waiting stubs; see `resend.due.DueKind`.

    It uses literals: a partial index serves only statements whose text has its condition.
    """
    column = table.c
    nought: ColumnElement[int] = literal_column("0")
    waiting = waiting_rows(table)
    unsent = and_(waiting, column.broker_name.is_(None))
    # An owner has begun a send and has not recorded its end.
    begun = and_(column.owner.is_not(None), column.count > nought)
    return {
        "unsent": and_(unsent, not_(begun)),
        "sent": and_(waiting, column.broker_name.is_not(None)),
        "suspect": and_(unsent, begun),
    }


def unowned_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition: stubs that any relay may send; see `sql_unowned`."""
    column = table.c
    waiting = waiting_kinds(table)["unsent"]
    never_sent = column.count == literal_column("0")
    return and_(waiting, not_(column.missed), column.owner.is_(None), never_sent)


def parked_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition: unsettled stubs that wait for a person only.

    Stubs with a status that this library never writes are included: nothing happens to them
    automatically.
    """
    column = table.c
    unsettled = column.status == literal_column("0")
    parked = and_(unsettled, or_(column.resend_time.is_(None), column.given_up))
    return or_(parked, column.status.not_in([literal_column(each) for each in ("0", *_SETTLED)]))


def keyed_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition: settled stubs with a business key; an index uses it."""
    return and_(settled_rows(table), table.c.message_key != literal_column("''"))


def voided_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition: stubs that a person or a repair has voided; an index uses it."""
    return table.c.status == literal_column(str(StubStatus.VOIDED.value))


def correlated_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition: stubs with a correlation id; an index uses it."""
    return table.c.correlation_id.is_not(None)


def arrived_rows(table: Table, before: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition: settled stubs whose message was to arrive before a time.

    A stub without a required group is confirmed while its message still waits at the broker.
    """
    column = table.c
    return or_(voided_rows(table), column.deliver_time.is_(None), column.deliver_time < before)


def settled_rows(table: Table) -> ColumnElement[bool]:
    """Return the condition: stubs that are CONFIRMED or VOIDED; the indexes use it, too."""
    return is_settled(table.c.status)


def is_settled(status: ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition: a status is CONFIRMED or VOIDED; an unknown status is neither."""
    return status.in_([literal_column(each) for each in _SETTLED])
