"""Read the stubs that match a person's filter, page by page."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, case, exists, func, literal, select

from reliable_mq.database.row_values import LogState, StubStatus
from reliable_mq.database.sql_stub_table import parked_rows
from reliable_mq.escalate.stub_filter import StubFilter, status_text

SUMMARY = (
    *("message_id", "topic", "tag", "message_key", "ordering_key", "status", "count"),
    *("resend_time", "given_up", "required_groups", "create_date", "note"),
)
PAGE_ROWS = 500


class StubSum(NamedTuple):
    """How many stubs of a topic require these groups, and how many of them were sent already."""

    topic: str
    required_groups: str
    number: int
    sent: int


class SqlStubList:
    """The stubs of one database that match a filter. Works in the caller's transaction."""

    def __init__(self, stubs: Table, logs: Table, wanted: StubFilter) -> None:
        self._seq = stubs.c.seq
        self._where = _conditions(stubs, logs, wanted)
        self._stub = stubs.c
        self._columns = [stubs.c[name] for name in SUMMARY]

    def count(self, connection: Connection) -> int:
        """Return the number of matching stubs."""
        return connection.execute(select(func.count(self._seq)).where(*self._where)).scalar_one()

    def sums(self, connection: Connection, until: datetime | None = None) -> list[StubSum]:
        """Return how many match, by topic and groups, the most first.

        Args:
            connection: the caller's transaction.
            until: only those that were not changed after this time.
        """
        stub = self._stub
        number = func.count(self._seq)
        wanted = select(
            stub.topic, stub.required_groups, number, func.sum(case((stub.count > 0, 1), else_=0))
        ).where(*self._where)
        if until is not None:
            wanted = wanted.where(stub.update_date <= until)
        found = wanted.group_by(stub.topic, stub.required_groups).order_by(number.desc())
        return [StubSum(row[0], row[1], row[2], int(row[3])) for row in connection.execute(found)]

    def seen(
        self, connection: Connection, after: int, until: datetime, limit: int
    ) -> tuple[dict[str, datetime], int]:
        """Return the oldest matching stubs after the row `after`, and the `seq` of the last one.

        Args:
            connection: the caller's transaction.
            after: a `seq`; 0: begin with the oldest.
            until: only those that were not changed after this time.
            limit: at most this many.

        Returns:
            When each was last changed, by message id; and where the next ones begin.
        """
        stub = self._stub
        wanted = (
            select(self._seq, stub.message_id, stub.update_date)
            .where(self._seq > after, stub.update_date <= until, *self._where)
            .order_by(self._seq)
            .limit(limit)
        )
        rows = connection.execute(wanted).all()
        return {row.message_id: row.update_date for row in rows}, rows[-1].seq if rows else after

    def newest(self, connection: Connection, limit: int) -> list[dict[str, Any]]:
        """Return the newest matching stubs, without their content."""
        wanted = select(*self._columns).where(*self._where).order_by(self._seq.desc()).limit(limit)
        return [_readable(row) for row in connection.execute(wanted)]

    def newest_before(
        self, connection: Connection, before: int | None, limit: int
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return the newest matching stubs before the row `before`, and where the next ones begin.

        Args:
            connection: the caller's transaction.
            before: a `seq`; None: begin with the newest stub.
            limit: at most this many.

        Returns:
            The stubs, and the `before` of the next page; None: this page is the last one.
        """
        wanted = select(self._seq, *self._columns).where(*self._where)
        if before is not None:
            wanted = wanted.where(self._seq < before)
        rows = connection.execute(wanted.order_by(self._seq.desc()).limit(limit + 1)).all()
        shown = rows[:limit]
        found = [_readable(row, leave_out="seq") for row in shown]
        return found, shown[-1].seq if len(rows) > limit else None

    def page(
        self, connection: Connection, after: int, limit: int = PAGE_ROWS
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the oldest matching stubs after the row `after`, and the `seq` of the last one."""
        wanted = (
            select(self._seq, *self._columns)
            .where(self._seq > after, *self._where)
            .order_by(self._seq)
            .limit(limit)
        )
        rows = connection.execute(wanted).all()
        return [_readable(row, leave_out="seq") for row in rows], rows[-1].seq if rows else after


def _conditions(stubs: Table, logs: Table, wanted: StubFilter) -> list[ColumnElement[bool]]:
    return list(_each_condition(stubs, logs, wanted))


def _each_condition(stubs: Table, logs: Table, wanted: StubFilter) -> Iterator[ColumnElement[bool]]:
    stub = stubs.c
    if wanted.status is not None:
        yield stub.status == wanted.status.value
    if wanted.escalated:
        yield parked_rows(stubs)  # the condition of an index
        yield and_(stub.status == StubStatus.UNCONFIRMED.value, stub.resend_time.is_(None))
    for column, value in (
        (stub.topic, wanted.topic),
        (stub.tag, wanted.tag),
        (stub.message_key, wanted.key),
        (stub.ordering_key, wanted.ordering_key),
    ):
        if value:
            yield column == value
    if wanted.group:
        log, comma = logs.c, literal(",")
        named = (comma + stub.required_groups + comma).contains(
            f",{wanted.group},", autoescape=True
        )
        consumed = exists().where(
            log.message_id == stub.message_id,
            log.consumer_group == wanted.group,
            log.state == LogState.CONSUMED.value,
        )
        yield and_(named, ~consumed)
    if wanted.since is not None:
        yield stub.create_date >= wanted.since
    if wanted.until is not None:
        yield stub.create_date < wanted.until
    if wanted.note:
        yield stub.note.contains(wanted.note, autoescape=True)


def _readable(row: Any, leave_out: str = "") -> dict[str, Any]:
    values = {name: value for name, value in row._mapping.items() if name != leave_out}
    return values | {"status": status_text(row.status)}
