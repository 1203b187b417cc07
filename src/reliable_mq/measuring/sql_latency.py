"""How long messages of the last hour took from station to station, from samples of one database.

Receives a span of five minutes. Each statement reads at most `SAMPLE` rows of an index. A span that
is over is read once.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_consume_log_table import consumed_rows
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_statement_limit import limit_statements
from reliable_mq.database.sql_stub_table import settled_rows
from reliable_mq.measuring.sql_throughput import STATEMENT_SECONDS

SAMPLE = 200
"""So many newest messages of each span are looked at."""
SPANS, SPAN = 12, timedelta(minutes=5)
NEWEST = 32
"""So many of the newest deliveries are named, for a look at the broker."""
_FRESH = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE = timedelta(milliseconds=1)
"""A row that was written at once has one time, that of its transaction."""


class Leg(StrEnum):
    """From one station to another."""

    RELAYED = "committed to relayed"
    STORED = "relayed to stored"
    FETCHED = "stored to delivered"
    DELIVERED = "committed to delivered"
    EFFECT = "delivered to effect"
    CONFIRMED = "effect to confirmed"
    WHOLE = "committed to confirmed"


class LegTimes(NamedTuple):
    """How long messages took for a leg, in seconds.

    `number`: how many were looked at. `track`: the p99 of each span, the oldest first; 0: none.
    """

    p50: float
    p99: float
    number: int
    track: list[float]


class SeenDelivery(NamedTuple):
    """A delivery to a consumer group: where the message is, and its times."""

    message_id: str
    topic: str
    broker_name: str
    queue_id: int
    offset: int
    committed: datetime
    delivered: datetime


class LatencySample(NamedTuple):
    """What was read: the times of each leg, and the newest deliveries."""

    legs: dict[Leg, LegTimes]
    newest: list[SeenDelivery]


Spans = dict[Leg, list[float]]


class SqlLatency:
    """Reads how long the messages of the last hour took.

    Invariant: `_known` has only spans of the last hour.

    Args:
        database: the database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[datetime, Spans] = {}

    def read(self) -> LatencySample:
        """Return the times of each leg that the database knows."""
        database = self._database
        with database.engine.connect() as connection:
            limit_statements(connection, STATEMENT_SECONDS)
            now = datetime.fromtimestamp(database.clock.measured_now(), UTC)
            return self._read(connection, now - (now - _EPOCH) % SPAN)

    def _read(self, connection: Connection, newest: datetime) -> LatencySample:
        found: dict[datetime, Spans] = {}
        deliveries: list[SeenDelivery] = []
        for number in range(SPANS):
            begin = newest - number * SPAN
            known = self._known.get(begin) if number > _FRESH else None
            if known is None:
                known, some = self._span(connection, begin, begin + SPAN)
                deliveries += some
            found[begin] = known
        self._known = found
        spans = [found[begin] for begin in sorted(found)]
        legs = {leg: times for leg in Leg if (times := _times(spans, leg)) is not None}
        return LatencySample(legs, deliveries[:NEWEST])

    def _span(
        self, connection: Connection, since: datetime, until: datetime
    ) -> tuple[Spans, list[SeenDelivery]]:
        span: Spans = {}
        deliveries = self._consumed(connection, since, until, span)
        self._confirmed(connection, since, until, span)
        return span, deliveries

    def _consumed(
        self, connection: Connection, since: datetime, until: datetime, span: Spans
    ) -> list[SeenDelivery]:
        log, stub = self._database.logs.c, self._database.stubs.c
        wanted = (
            select(
                *(log.message_id, log.topic, log.broker_name, log.queue_id, log.offset),
                *(log.create_date, log.consume_date),
            )
            .where(consumed_rows(self._database.logs))
            .where(log.consume_date >= since, log.consume_date < until)
            .order_by(log.consume_date.desc())
            .limit(SAMPLE)
        )
        rows = connection.execute(wanted).all()
        ids = {row.message_id for row in rows}
        of_stubs = select(stub.message_id, stub.create_date, stub.deliver_time)
        stubs = connection.execute(of_stubs.where(stub.message_id.in_(ids))) if ids else ()
        committed = {row.message_id: _begin(row) for row in stubs}
        span[Leg.EFFECT] = _seconds(
            (row.create_date, row.consume_date)
            for row in rows
            if row.consume_date - row.create_date >= _AT_ONCE
        )
        found = [
            SeenDelivery(*row[:5], committed[row.message_id], row.create_date)
            for row in rows
            if row.message_id in committed
        ]
        span[Leg.DELIVERED] = _seconds((each.committed, each.delivered) for each in found)
        return found

    def _confirmed(
        self, connection: Connection, since: datetime, until: datetime, span: Spans
    ) -> None:
        stub, log = self._database.stubs.c, self._database.logs.c
        wanted = (
            select(
                *(stub.message_id, stub.status, stub.create_date, stub.deliver_time),
                stub.update_date,
            )
            .where(settled_rows(self._database.stubs))
            .where(stub.update_date >= since, stub.update_date < until)
            .order_by(stub.update_date.desc())
            .limit(SAMPLE)
        )
        rows = [row for row in connection.execute(wanted) if row.status == StubStatus.CONFIRMED]
        ids = {row.message_id for row in rows}
        of_logs = (
            select(log.message_id, func.max(log.consume_date))
            .where(log.message_id.in_(ids), consumed_rows(self._database.logs))
            .group_by(log.message_id)
        )
        effects = {row[0]: row[1] for row in connection.execute(of_logs)} if ids else {}
        span[Leg.CONFIRMED] = _seconds(
            (effects[row.message_id], row.update_date) for row in rows if row.message_id in effects
        )
        span[Leg.WHOLE] = _seconds((_begin(row), row.update_date) for row in rows)


def _begin(stub: Any) -> datetime:
    """Return when a message was to arrive: a delay that was asked for is no latency."""
    committed: datetime = stub.create_date
    return max(committed, stub.deliver_time or committed)


def _seconds(pairs: Iterable[tuple[datetime, datetime]]) -> list[float]:
    """Return how long each took; clocks of two machines may differ a little."""
    return [max(0.0, (end - begin).total_seconds()) for begin, end in pairs]


def _times(spans: Sequence[Mapping[Leg, list[float]]], leg: Leg) -> LegTimes | None:
    found = [sorted(each.get(leg, [])) for each in spans]
    times = times_of([each for some in found for each in some])
    return times and times._replace(track=[share(each, 0.99) for each in found])


def times_of(seconds: Sequence[float]) -> LegTimes | None:
    """Return the times of a leg without a track; None: no message was looked at."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    return LegTimes(share(ordered, 0.5), share(ordered, 0.99), len(ordered), [])


def share(ordered: Sequence[Any], part: float) -> float:
    """Return the value below which this part of sorted numbers is; 0: there are none."""
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * part))]) if ordered else 0.0
