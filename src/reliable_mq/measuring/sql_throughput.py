"""Counts what happened in one database in each minute or hour: committed, consumed, confirmed.

Receives a span. Each statement counts a range of one index, and reads no content.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, Table, func, select

from reliable_mq.database.sql_consume_log_table import consumed_rows
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_statement_limit import limit_statements
from reliable_mq.database.sql_stub_table import settled_rows

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
STATEMENT_SECONDS = 5.0
"""The database ends a statement after this time, in seconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Happening(StrEnum):
    """What is counted: a step in the life of messages."""

    COMMITTED = "committed"
    CONSUMED = "consumed"
    CONFIRMED = "confirmed"


class SqlThroughput:
    """Counts by minute or hour in one database. A span that is over for long is counted once.

    Invariant: `_counted` has only the newest spans.

    Args:
        database: the database.
        spans: how many spans are counted.
        length: the length of a span: a minute or an hour.
    """

    FRESH = 2
    """So many spans before the last are counted again: a long transaction commits late."""

    def __init__(self, database: Database, spans: int = 60, length: timedelta = MINUTE) -> None:
        self._database = database
        self._spans = spans
        self._length = length
        self._fresh = self.FRESH if length == MINUTE else 1
        self._counted: dict[tuple[Happening, datetime], int] = {}

    def read(self) -> dict[Happening, list[int]]:
        """Return the counts of each span, the oldest first; the last one is not over yet."""
        database = self._database
        with database.engine.connect() as connection:
            limit_statements(connection, STATEMENT_SECONDS)
            now = datetime.fromtimestamp(database.clock.measured_now(), UTC)
            newest = now - (now - _EPOCH) % self._length
            return self._read(connection, newest)

    def _read(self, connection: Connection, newest: datetime) -> dict[Happening, list[int]]:
        begins = [newest - number * self._length for number in range(self._spans)]
        found: dict[tuple[Happening, datetime], int] = {}
        for what in Happening:
            for number, begin in enumerate(begins):
                known = self._counted.get((what, begin)) if number > self._fresh else None
                found[what, begin] = (
                    self._count(connection, what, begin) if known is None else known
                )
        self._counted = found
        return {what: [found[what, begin] for begin in reversed(begins)] for what in Happening}

    def _count(self, connection: Connection, what: Happening, begin: datetime) -> int:
        table, conditions = self._rows(what, begin, begin + self._length)
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
