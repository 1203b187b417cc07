"""Make the waiting stubs of a topic due after it has opened. Says whether more are waiting.

Stubs of a closed topic wait for a probe, for their own next send, or for an earlier stub of their
ordering key. When the topic opens, all of them get the same due time: the earliest one. So they are
claimed in the order of their rows, and the order of a key holds.
"""

from sqlalchemy import (
    ColumnElement,
    Table,
    and_,
    bindparam,
    literal_column,
    or_,
    select,
    update,
)

from reliable_mq.database.sql_stub_table import waiting_kinds
from reliable_mq.database.sql_types import EARLIEST, is_among, utc_datetime
from reliable_mq.outbox.resend_policy import WAIT_MAX
from reliable_mq.outbox.sql_stubs import SqlStubs

ROWS_MAX = 5_000
"""Most rows that one transaction makes due."""


def is_free(table: Table) -> ColumnElement[bool]:
    """Return the condition that a stub is not claimed and has no delivery time after `now`.

    A delayed message keeps its own time: otherwise it would be delivered too early.
    """
    stub = table.c
    return and_(
        or_(stub.lease_until.is_(None), stub.lease_until <= bindparam("now")),
        or_(stub.deliver_time.is_(None), stub.deliver_time <= bindparam("now")),
    )


def latest_wait(now: float) -> float:
    """Return the latest due time that we ever write. A later one comes from another program."""
    return now + WAIT_MAX


class SqlOpening:
    """The waiting stubs of topics that open, in one database. Every method is one transaction."""

    def __init__(self, stubs: SqlStubs) -> None:
        self._engine = stubs.engine
        table = stubs.table
        stub = table.c
        of_topic = (waiting_kinds(table)["unsent"], stub.topic == bindparam("topic"))
        hint = f"/*+ INDEX({table.name} {table.name}_unsent) */"
        in_order = (stub.resend_time, stub.seq)
        # ORDER BY and LIMIT instead of MIN: for MIN, MariaDB would read all waiting rows.
        self._first = (
            select(stub.resend_time)
            .where(*of_topic, stub.resend_time.is_not(None))
            .prefix_with(hint, dialect="mysql")
            .order_by(*in_order)
            .limit(literal_column("1"))
        )
        later = (
            select(stub.seq)
            .where(
                *of_topic,
                stub.resend_time > bindparam("first"),
                stub.resend_time <= bindparam("last"),
                is_free(table),
            )
            .prefix_with(hint, dialect="mysql")
            .order_by(*in_order)
            .limit(bindparam("limit"))
        )
        self._later, self._left = later.with_for_update(skip_locked=True), later
        self._hurry = (
            update(table)
            .where(is_among(stub.seq, "seqs", stubs.engine.dialect.name))
            .values(resend_time=bindparam("first"))
        )

    def make_due(self, topic: str, now: float) -> bool:
        """Make at most `ROWS_MAX` waiting stubs of a topic due now; True: there are more."""
        with self._engine.begin() as connection:
            first = connection.execute(self._first, {"topic": topic}).scalar()
            at = utc_datetime(now)
            if first is not None and EARLIEST < first < at:
                at = first
            values = {
                "topic": topic,
                "first": at,
                "last": utc_datetime(latest_wait(now)),
                "now": utc_datetime(now),
                "limit": ROWS_MAX,
            }
            seqs = list(connection.execute(self._later, values).scalars())
            if seqs:
                connection.execute(self._hurry, {"seqs": seqs, "first": at})
            # Rows that were locked at that moment were skipped: they keep their time until then.
            return connection.execute(self._left, values | {"limit": 1}).first() is not None
