"""The rows of periodic messages, one sentence a statement.

Tables `<prefix>periodic` and `<prefix>periodic_tick`, see `database.sql_periodic_tables`. The lock
on a periodic message's row decides who fires its ticks. The key of the second table makes sure that
no tick is fired twice.
"""

from contextlib import suppress
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Engine,
    Table,
    and_,
    bindparam,
    case,
    delete,
    insert,
    null,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from reliable_mq.database.sql_types import NOTE_LENGTH_MAX, plain_text, utc_datetime

TICKS_KEPT = 10_000
"""So many fired ticks of each periodic message are remembered. They matter only if a clock was
ahead: ticks of the future were fired, and come again."""


class PeriodicRow(msgspec.Struct, frozen=True):
    """The row of a periodic message. Times are in seconds since the epoch."""

    decided_until: float
    fired: int
    failures: int
    retry_time: float | None


class SqlTicks:
    """The periodic messages of one application in one database.

    Args:
        engine: the database.
        messages: the table of periodic messages.
        ticks: the table of fired ticks.
        application: the application's name.
    """

    def __init__(self, engine: Engine, messages: Table, ticks: Table, application: str) -> None:
        self._engine = engine
        self._messages = messages
        self._ticks = ticks
        self._application = application
        of, tick = messages.c, ticks.c
        this = and_(of.application == application, of.name == bindparam("this"))
        self._find = select(of.decided_until, of.fired, of.failures, of.retry_time).where(this)
        self._lock = self._find.with_for_update(skip_locked=True)
        self._declared = select(of.schedule).where(this)  # does not wait for a running function
        is_earlier = of.decided_until < bindparam("at", type_=of.decided_until.type)
        begin = case(
            (is_earlier, bindparam("at", type_=of.decided_until.type)), else_=of.decided_until
        )
        self._reschedule = (
            update(messages)
            .where(this)
            .values(
                schedule=bindparam("new"),
                decided_until=begin,
                update_date=bindparam("at"),
                failures=0,
                retry_time=null(),
                note=null(),
            )
        )
        self._all = select(messages).where(of.application == application)
        self._change = update(messages).where(this)
        self._note_failure = self._change.where(
            of.fired == bindparam("known_fired"), of.failures == bindparam("known_failures")
        )
        mine = and_(tick.application == application, tick.name == bindparam("this"))
        self._is_fired = select(tick.number).where(mine, tick.tick_time == bindparam("at"))
        self._forget = delete(ticks).where(mine, tick.number <= bindparam("last"))

    def declare(self, name: str, schedule: str, now: float) -> None:
        """Insert the row of a periodic message, or note that its schedule has changed.

        Ticks before the first declaration, or before the change, are not made up.
        """
        at, schedule = utc_datetime(now), plain_text(schedule)[:NOTE_LENGTH_MAX]
        row: dict[str, Any] = {"application": self._application, "name": name}
        row |= {"schedule": schedule, "decided_until": at, "create_date": at, "update_date": at}
        with self._engine.begin() as connection:
            known = connection.execute(self._declared, {"this": name}).scalar_one_or_none()
            if known is not None:
                if known != schedule:
                    values = {"this": name, "new": schedule, "at": at}
                    connection.execute(self._reschedule, values)
                return
        with suppress(IntegrityError), self._engine.begin() as connection:  # another one inserts it
            connection.execute(insert(self._messages), row)

    def has_row(self, name: str) -> bool:
        """Return whether a periodic message has a row; does not wait for a lock."""
        with self._engine.connect() as connection:
            return connection.execute(self._declared, {"this": name}).first() is not None

    def lock(self, connection: Connection, name: str) -> PeriodicRow | None:
        """Lock a row until the end of the transaction; None: another one has the lock."""
        row = connection.execute(self._lock, {"this": name}).first()
        if row is None:
            return None
        retry = row.retry_time
        return PeriodicRow(
            row.decided_until.timestamp(),
            row.fired,
            row.failures,
            None if retry is None else retry.timestamp(),
        )

    def is_fired(self, connection: Connection, name: str, tick: float) -> bool:
        """Return whether a tick was fired."""
        given = {"this": name, "at": utc_datetime(tick)}
        return connection.execute(self._is_fired, given).first() is not None

    def decide(self, connection: Connection, name: str, until: float, now: float) -> None:
        """Record that every tick up to a time is decided."""
        values = {"decided_until": utc_datetime(until), "update_date": utc_datetime(now)}
        connection.execute(self._change.values(**values), {"this": name})

    def fire(
        self,
        connection: Connection,
        name: str,
        tick: float,
        number: int,
        message_ids: list[str],
        now: float,
    ) -> None:
        """Record a fired tick, in the transaction of its stubs. `number`: it is the n-th tick."""
        at, first = utc_datetime(now), message_ids[0] if message_ids else None
        row = {"application": self._application, "name": name, "number": number}
        row |= {"tick_time": utc_datetime(tick), "fire_date": at}
        row |= {"messages": len(message_ids), "message_id": first}
        connection.execute(insert(self._ticks), row)
        values: dict[str, Any] = {"decided_until": utc_datetime(tick), "fired": number}
        values |= {"last_tick": utc_datetime(tick), "last_message_id": first, "fire_date": at}
        values |= {"failures": 0, "retry_time": null(), "note": null(), "update_date": at}
        connection.execute(self._change.values(**values), {"this": name})
        if number > TICKS_KEPT:
            connection.execute(self._forget, {"this": name, "last": number - TICKS_KEPT})

    def fail(self, name: str, row: PeriodicRow, retry_time: float, why: str, now: float) -> bool:
        """Record a failed try, and when the next one may begin.

        `row`: as it was locked for the try. The lock is gone: if another process has fired the tick
        or has failed at it since, nothing is changed. Returns whether it was recorded.
        """
        values = {"failures": row.failures + 1, "retry_time": utc_datetime(retry_time), "note": why}
        change = self._note_failure.values(**values, update_date=utc_datetime(now))
        known = {"this": name, "known_fired": row.fired, "known_failures": row.failures}
        with self._engine.begin() as connection:
            return connection.execute(change, known).rowcount > 0

    def rows(self) -> dict[str, Any]:
        """Return the rows of the application by the names of its periodic messages."""
        with self._engine.connect() as connection:
            return {row.name: row for row in connection.execute(self._all)}
