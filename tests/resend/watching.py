"""A retention whose time is watched all the while, so that it passes as the test says."""

from typing import Any

from sqlalchemy import delete

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_watched_time import SqlWatchedTime
from reliable_mq.retention.retention import Retention, RetentionCounts
from reliable_mq.retention.sql_keeping import retention_ledgers
from reliable_mq.watched_time import ClockReading, SteadyPeriod, WatchedTime


def watched_reading(now: float = 0.0) -> ClockReading:
    return ClockReading(now, now, "test")


class WatchedRetention(Retention):
    """Retention whose clocks say what `run_once` is told, and go on at no other time."""

    def __init__(self, database: Database, **more: Any) -> None:
        self.now = 0.0
        ledgers = retention_ledgers(database)
        super().__init__(ledgers, look=lambda: watched_reading(self.now), **more)

    def run_once(self, now: float) -> RetentionCounts:
        self.now = now
        return super().run_once(now)


def watched_retention(database: Database, **more: Any) -> Retention:
    """Return retention of a database whose clock somebody has watched from the beginning."""
    watch(database)
    return WatchedRetention(database, **more)


def watch(database: Database, until: float = 0.0) -> None:
    """Let the clock have been watched from the beginning up to a time."""
    begun = WatchedTime(watched_reading(until), (SteadyPeriod(until, until),))
    with database.engine.begin() as connection:
        connection.execute(delete(database.watched_time))
        SqlWatchedTime(database.watched_time).save(connection, begun)
