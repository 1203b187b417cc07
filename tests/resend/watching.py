"""A retention whose time is watched all the while, so that it passes as the test says."""

from typing import Any

from sqlalchemy import delete

from reliable_mq.app.sql_database import Database
from reliable_mq.app.sql_keeping import retention_ledgers
from reliable_mq.resend.retention import Retention
from reliable_mq.sql_watched_time import SqlWatchedTime
from reliable_mq.watched_time import Reading, Stretch, WatchedTime


def watched_reading(now: float) -> Reading:
    return Reading(now, now, "test")


def watched_retention(database: Database, **more: Any) -> Retention:
    """Return retention of a database whose clock somebody has watched from the beginning."""
    watch(database)
    return Retention(retention_ledgers(database), look=watched_reading, **more)


def watch(database: Database, until: float = 0.0) -> None:
    """Let the clock have been watched from the beginning up to a time."""
    begun = WatchedTime(watched_reading(until), (Stretch(until, until),))
    with database.engine.begin() as connection:
        connection.execute(delete(database.watched_time))
        SqlWatchedTime(database.watched_time).note(connection, begun)
