"""The table of stubs (design, section 4). Only the shape; statements are in `sql_stubs`."""

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
    only_on,
    tells_no_time,
)

DEFAULT_PREFIX = "rmq_"

_SETTLED = (str(StubStatus.CONFIRMED.value), str(StubStatus.VOIDED.value))


def message_stub_table(
    metadata: MetaData, prefix: str = DEFAULT_PREFIX, *, by_day: bool = False
) -> Table:
    """Return the table `<prefix>message_stub`: a row is a message that a transaction committed.

    `resend_time` is null when nothing is to be done by itself: the stub was settled, or it was
    escalated and waits for a person. `given_up_by` are the required groups that made a dead letter
    of it, each of which a person was told of in the same commit; `given_up` says that no other one
    is waited for: nothing is sent any more, however many sends are left. `missed` says that no
    relay sends it any more: a scheduler has taken it over, or somebody asked for it to be sent
    again. `content` is byte for byte the body that is sent.
    `by_day` partitions it by the time in the message id (PostgreSQL).
    """
    name = f"{prefix}message_stub"
    if name in metadata.tables:
        return metadata.tables[name]
    table = Table(
        name,
        metadata,
        Column("seq", GrowingNumber, primary_key=True, autoincrement=True),
        # A partitioned table's key has to hold what it is partitioned by; both are unique anyway.
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
        postgresql_partition_by="RANGE (message_id)" if by_day else None,
        # Every stub is written three times within a second, and most of them lie still: dead rows
        # must go long before they are a fifth of the table. (Partitions are small, and take none.)
        postgresql_with={} if by_day else {"autovacuum_vacuum_scale_factor": 0.02},
    )
    _make_indexes(table)
    return table


def _make_indexes(table: Table) -> None:
    """Give the table its indexes, each of the rows that somebody looks for.

    MySQL knows no partial ones: there they begin with what the others leave out.
    """
    name, column = table.name, table.c
    # Each kind of waiting has an index of its own, by topic: a scheduler finds what is due of one
    # without reading past another's, however many wait.
    for kind, condition in waiting_kinds(table).items():
        columns = (column.topic, column.resend_time, column.seq)
        _index(f"{name}_{kind}", condition, *columns)
    # What is stuck: of all that waits of a topic, what is old.
    _index(f"{name}_waiting", waiting_rows(table), column.topic, column.create_date)
    # What retention removes, the oldest first.
    _index(f"{name}_settled", settled_rows(table), column.update_date)
    # What no relay owns and nobody has sent or missed; what has an owner costs this index nothing.
    _index(f"{name}_unowned", unowned_rows(table), column.resend_time, column.seq)
    # Reconciliation: which topics there are.
    _index(f"{name}_topic", settled_rows(table), column.topic)
    # And what it cannot find otherwise: what waits for a person, or has a status that nobody of us
    # wrote, is in no index of those that wait, ids that do not begin with their time are in no
    # range of them. There are few, or none.
    _index(f"{name}_parked", parked_rows(table), column.update_date)
    _index(f"{name}_untimed", tells_no_time(column.message_id), column.message_id)
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
    # By what is counted, too: of few owners is the send that was begun told from all that wait.
    yield Index(f"{name}_unowned", *unsent, column.missed, column.owner, column.count, *when)
    yield Index(f"{name}_waiting", column.status, column.topic, column.create_date)
    yield Index(f"{name}_settled", column.update_date)
    key = (column.topic, column.ordering_key, column.status)
    yield Index(f"{name}_ordered", *key, column.broker_name, column.seq)


def waiting_rows(table: Table) -> ColumnElement[bool]:
    """Return what stubs have in common that are not settled and wait for no person."""
    column = table.c
    unsettled = column.status == literal_column("0")
    return and_(unsettled, column.resend_time.is_not(None), not_(column.given_up))


def waiting_kinds(table: Table) -> dict[str, ColumnElement[bool]]:
    """Return what the stubs of each kind of waiting have in common; see `resend.due.DueKind`.

    Literals throughout: a partial index is used only when its condition is in the statement's text.
    """
    column = table.c
    nought: ColumnElement[int] = literal_column("0")
    waiting = waiting_rows(table)
    unsent = and_(waiting, column.broker_name.is_(None))
    # The send of one was begun by an owner that has not told of its end.
    begun = and_(column.owner.is_not(None), column.count > nought)
    return {
        "unsent": and_(unsent, not_(begun)),
        "sent": and_(waiting, column.broker_name.is_not(None)),
        "suspect": and_(unsent, begun),
    }


def unowned_rows(table: Table) -> ColumnElement[bool]:
    """Return what stubs have in common that any relay may send: see `sql_unowned`."""
    column = table.c
    waiting = waiting_kinds(table)["unsent"]
    never_sent = column.count == literal_column("0")
    return and_(waiting, not_(column.missed), column.owner.is_(None), never_sent)


def parked_rows(table: Table) -> ColumnElement[bool]:
    """Return what stubs have in common that are not settled and wait for a person only.

    Those of a status that nobody of us wrote are among them: nothing is done to these by itself.
    """
    column = table.c
    unsettled = column.status == literal_column("0")
    parked = and_(unsettled, or_(column.resend_time.is_(None), column.given_up))
    return or_(parked, column.status.not_in([literal_column(each) for each in ("0", *_SETTLED)]))


def arrived_rows(table: Table, before: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return what settled stubs have in common whose message was to arrive before a time.

    One without a required group is confirmed while its message still waits at the broker.
    """
    column = table.c
    is_voided = column.status == literal_column(str(StubStatus.VOIDED.value))
    return or_(is_voided, column.deliver_time.is_(None), column.deliver_time < before)


def settled_rows(table: Table) -> ColumnElement[bool]:
    """Return what stubs that are CONFIRMED or VOIDED have in common; the indexes' condition."""
    return is_settled(table.c.status)


def is_settled(status: ColumnElement[int]) -> ColumnElement[bool]:
    """Say that a status is CONFIRMED or VOIDED; one that nobody of us wrote is neither."""
    return status.in_([literal_column(each) for each in _SETTLED])
