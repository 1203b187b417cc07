"""A process that fires periodic messages, in a test: real tables, and a relay that only listens."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select

from reliable_mq import Tick
from reliable_mq.database.sql_database import Database
from reliable_mq.outbox.sql_outbox import SqlOutbox
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.thread_outboxes import OpenOutbox
from reliable_mq.periodic.declaration import PeriodicMessage, periodic_message
from reliable_mq.periodic.sql_ticks import SqlTicks
from reliable_mq.periodic.thread_periodic import PeriodicCounts, PeriodicSender

HOUR, DAY = 3600.0, 86_400.0
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()


def hourly(tick: Tick) -> str:
    """Return the payload of the tests: which tick it is."""
    return tick.time.strftime("%d %H:%M") + (f" -{tick.skipped}" if tick.skipped else "")


class NoRelay:
    """Accepts committed stubs, and does nothing with them."""

    def accept_committed(self, stubs: list[Any]) -> None:
        """See `Handover`."""


def declared(function: Callable[..., Any], *expressions: str, **given: Any) -> PeriodicMessage:
    """Return a periodic message as `ReliableMQ.periodic` declares it."""
    usual: dict[str, Any] = {"topic": "reports", "name": None, "time_zone": "UTC"}
    usual |= {"catch_up": None, "database": "main", "options": {}}
    return periodic_message(function, expressions or ("0 * * * *",), **{**usual, **given})


class SchedulerLife:
    """One scheduler at a database, until its `close`."""

    def __init__(self, url: str, *messages: PeriodicMessage) -> None:
        self.database = database = Database(url, prefix="rmq_", connections=2)
        stubs = SqlStubs(database.engine, database.stubs)
        outbox = SqlOutbox(
            stubs, NoRelay(), owner="relay", lease=5.0, groups_of_topic=lambda _topic, _tag: ()
        )
        opened = OpenOutbox(outbox, database.session, database.async_session)
        self.ticks = SqlTicks(database.engine, database.periodic, database.periodic_ticks, "shop")
        self.sender = PeriodicSender(messages, self.ticks, database.handler_session, lambda: opened)

    def run(self, now: float) -> PeriodicCounts:
        """Run until nothing more is due at `now`."""
        return self.sender.run_once(now)

    def close(self) -> None:
        """Close the connections."""
        self.database.close()


def payloads(database: Database) -> list[str]:
    """Return the bodies of all stubs, in the order of their rows."""
    stub = database.stubs.c
    with database.engine.connect() as connection:
        bodies = connection.execute(select(stub.content).order_by(stub.seq)).scalars()
        return [bytes(body).decode() for body in bodies]


def fired(database: Database) -> list[tuple[str, int]]:
    """Return the fired ticks in order: the time of the day, and the number of messages."""
    tick = database.periodic_ticks.c
    with database.engine.connect() as connection:
        rows = connection.execute(select(tick.tick_time, tick.messages).order_by(tick.tick_time))
        return [(row.tick_time.strftime("%d %H:%M"), row.messages) for row in rows]


Begin = Callable[..., SchedulerLife]
"""Starts a scheduler."""
