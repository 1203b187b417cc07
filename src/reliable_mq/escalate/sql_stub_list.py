"""Read the stubs that match a person's filter, page by page."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    case,
    exists,
    func,
    literal,
    or_,
    select,
)

from reliable_mq.database.row_values import LogState, StubStatus
from reliable_mq.database.sql_stub_table import correlated_rows, parked_rows
from reliable_mq.database.sql_windows import read_by_indexes, times_span, window_end, window_rows
from reliable_mq.escalate.sql_stub_ways import StubWay, ways_of
from reliable_mq.escalate.stub_filter import StubFilter, status_text
from reliable_mq.outbox.correlation import kept_correlation

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
        self._table = stubs
        self._wanted = wanted
        self._ways = list(ways_of(stubs, wanted))
        self._seq = stubs.c.seq
        self._own = list(_own_conditions(stubs, wanted))
        self._logs = logs
        self._where = [*self._own, *self._unconsumed(stubs.c.message_id)]
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
        wanted = select(self._seq, stub.message_id, stub.update_date).where(
            self._seq > after, stub.update_date <= until, *self._where
        )
        by = self._ways[0].of(wanted, limit, newest=False) if self._ways else None
        ordered = wanted.order_by(self._seq).limit(limit) if by is None else by
        rows = connection.execute(ordered).all()
        return {row.message_id: row.update_date for row in rows}, rows[-1].seq if rows else after

    def newest(self, connection: Connection, limit: int) -> list[dict[str, Any]]:
        """Return the newest matching stubs, without their content, however long it takes."""
        wanted = select(self._seq, *self._columns).where(*self._where)
        way = self._short_way(connection)
        ordered = wanted.order_by(self._seq.desc()).limit(limit)
        found = ordered if way is None else way.of(wanted, limit, newest=True)
        return [_readable(row, leave_out="seq") for row in connection.execute(found)]

    def newest_before(
        self, connection: Connection, before: int | None, limit: int
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return the newest matching stubs before the row `before`, and where the next ones begin.

        If an index leads to few stubs, all of them are looked at. Otherwise a window of the table
        is: then there may be fewer than `limit` rows though more match.

        Args:
            connection: the caller's transaction.
            before: a `seq`; None: begin with the newest stub.
            limit: at most this many.

        Returns:
            The stubs, and the `before` of the next page; None: this page is the last one.
        """
        place = [] if before is None else [self._seq < before]
        wanted = select(self._seq, *self._columns).where(*self._where, *place)
        way, end = self._short_way(connection), None
        read_by_indexes(connection)  # also the consume log, of which a filter may ask
        if way is None:
            looked, end = self._window(connection, place)
            found = wanted.where(*looked).order_by(self._seq.desc()).limit(limit + 1)
        elif self._wanted.group:
            seqs, end = self._unconsumed_by(connection, way, place, limit + 1)
            found = select(self._seq, *self._columns).where(self._seq.in_(seqs))
            found = found.order_by(self._seq.desc())
        else:
            found = way.of(wanted, limit + 1, newest=True)
        rows = connection.execute(found).all()
        shown = rows[:limit]
        read = [_readable(row, leave_out="seq") for row in shown]
        return read, shown[-1].seq if len(rows) > limit else end

    def _short_way(self, connection: Connection) -> StubWay | None:
        return next((each for each in self._ways if each.is_short(connection, self._table)), None)

    def _unconsumed_by(
        self, connection: Connection, way: StubWay, place: list[ColumnElement[bool]], limit: int
    ) -> tuple[list[int], int | None]:
        """Return the newest stubs of a way that the group has not consumed, and where to go on.

        The consume log is asked for a window of the way, the newest first, until there are enough.
        Its end is read first. Stubs come and are confirmed meanwhile, and the next page must begin
        where this one ended.
        """
        stub, rows = self._stub, window_rows(is_costly=True)
        wanted = select(self._seq, stub.message_id).where(*self._own, *place)
        newest = way.newest(wanted, rows + 1).c
        ends = select(newest.seq).order_by(newest.place.desc()).offset(rows - 1)
        left = list(connection.execute(ends).scalars())
        end = left[0] if len(left) > 1 else None
        if end is not None:  # an expression, as in `StubWay.of`
            wanted = wanted.where(self._seq + 0 >= end)
        newest = way.newest(wanted, 2 * rows).c  # so many at most, with those that came meanwhile
        asked = select(newest.seq).where(*self._unconsumed(newest.message_id))
        found = connection.execute(asked.order_by(newest.place.desc()).limit(limit))
        seqs = list(found.scalars())
        return seqs, None if len(seqs) == limit else end

    def _unconsumed(self, message_id: ColumnElement[str]) -> list[ColumnElement[bool]]:
        """Return the condition that the group of the filter has not consumed a message."""
        log, group = self._logs.c, self._wanted.group
        consumed = exists().where(
            log.message_id == message_id,
            log.consumer_group == group,
            log.state == LogState.CONSUMED.value,
        )
        return [~consumed] if group else []

    def _window(
        self, connection: Connection, place: list[ColumnElement[bool]]
    ) -> tuple[list[ColumnElement[bool]], int | None]:
        """Return the conditions of a window before a place, and its end; None: it is the last."""
        wanted, moment = self._wanted, self._stub.create_date
        span = times_span(connection, self._seq, moment, wanted.since, wanted.until)
        is_costly = bool(wanted.group)
        end = window_end(connection, [self._seq], [*span, *place], is_costly=is_costly)
        if end is None:
            return span, None
        return [*span, self._seq >= end[0]], int(end[0])

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


def _own_conditions(stubs: Table, wanted: StubFilter) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions that only the row of a stub is read for."""
    stub = stubs.c
    if wanted.status is not None:
        yield stub.status == wanted.status.value
    if wanted.escalated:
        yield parked_rows(stubs)  # the condition of an index
        yield and_(stub.status == StubStatus.UNCONFIRMED.value, stub.resend_time.is_(None))
    elif wanted.escalated is not None:
        yield or_(stub.status != StubStatus.UNCONFIRMED.value, stub.resend_time.is_not(None))
    for column, value in (
        (stub.topic, wanted.topic),
        (stub.tag, wanted.tag),
        (stub.message_key, wanted.key),
        (stub.ordering_key, wanted.ordering_key),
    ):
        if value:
            yield column == value
    if wanted.group:
        comma = literal(",")
        yield (comma + stub.required_groups + comma).contains(f",{wanted.group},", autoescape=True)
    if wanted.since is not None:
        yield stub.create_date >= wanted.since
    if wanted.until is not None:
        yield stub.create_date < wanted.until
    if wanted.correlation_id:
        yield correlated_rows(stubs)  # the condition of an index
        yield stub.correlation_id == kept_correlation(wanted.correlation_id)
        if wanted.hidden_topics:
            yield stub.topic.not_in(wanted.hidden_topics)
    if wanted.note:
        yield stub.note.contains(wanted.note, autoescape=True)


def _readable(row: Any, leave_out: str = "") -> dict[str, Any]:
    values = {name: value for name, value in row._mapping.items() if name != leave_out}
    return values | {"status": status_text(row.status)}
