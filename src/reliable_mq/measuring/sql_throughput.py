"""Counts what happened in one database in each minute: committed, consumed, confirmed.

Receives a minute. Each statement counts a range of one index, and reads no content.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, Table, func, select

from reliable_mq.database.sql_consume_log_table import consumed_rows
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_statement_limit import limit_statements
from reliable_mq.database.sql_stub_table import settled_rows

MINUTE = timedelta(minutes=1)
STATEMENT_SECONDS = 5.0
"""The database ends a statement after this time, in seconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Happening(StrEnum):
    """What is counted: a step in the life of messages."""

    COMMITTED = "committed"
    CONSUMED = "consumed"
    CONFIRMED = "confirmed"


class SqlThroughput:
    """Counts by minute in one database. A minute that is over for long is counted once.

    Invariant: `_counted` has only minutes of the last hour.

    Args:
        database: the database.
        minutes: how many minutes are counted.
    """

    FRESH = 2
    """So many newest minutes are counted again: a transaction that takes long commits late."""

    def __init__(self, database: Database, minutes: int = 60) -> None:
        self._database = database
        self._minutes = minutes
        self._counted: dict[tuple[Happening, datetime], int] = {}

    def read(self) -> dict[Happening, list[int]]:
        """Return the counts of each minute, the oldest first; the last minute is not over yet."""
        database = self._database
        with database.engine.connect() as connection:
            limit_statements(connection, STATEMENT_SECONDS)
            now = datetime.fromtimestamp(database.clock.measured_now(), UTC)
            return self._read(connection, now.replace(second=0, microsecond=0))

    def _read(self, connection: Connection, newest: datetime) -> dict[Happening, list[int]]:
        minutes = [newest - number * MINUTE for number in range(self._minutes)]
        found: dict[tuple[Happening, datetime], int] = {}
        for what in Happening:
            for number, minute in enumerate(minutes):
                known = self._counted.get((what, minute)) if number > self.FRESH else None
                found[what, minute] = (
                    self._count(connection, what, minute) if known is None else known
                )
        self._counted = found
        return {what: [found[what, minute] for minute in reversed(minutes)] for what in Happening}

    def _count(self, connection: Connection, what: Happening, minute: datetime) -> int:
        table, conditions = self._rows(what, minute, minute + MINUTE)
        counted = select(func.count()).select_from(table).where(*conditions)
        return connection.execute(counted).scalar_one()

    def _rows(
        self, what: Happening, since: datetime, until: datetime
    ) -> tuple[Table, list[ColumnElement[bool]]]:
        stubs, logs = self._database.stubs, self._database.logs
        match what:
            case Happening.COMMITTED:  # ids begin with their time, and have the smallest index
                column = stubs.c.message_id
                return stubs, [column >= first_id(since), column < first_id(until)]
            case Happening.CONSUMED:
                moment = logs.c.consume_date
                return logs, [consumed_rows(logs), moment >= since, moment < until]
            case Happening.CONFIRMED:
                moment = stubs.c.update_date
                return stubs, [settled_rows(stubs), moment >= since, moment < until]


def first_id(moment: datetime) -> str:
    """Return the text before which the ids of earlier milliseconds sort."""
    return f"{(moment - _EPOCH) // timedelta(milliseconds=1):012X}"
