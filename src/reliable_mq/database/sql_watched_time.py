"""Stores what is known about the clocks, in the database whose rows they date; see `watched_time`.

Table `<prefix>watched_time` has one row. The process that removes old rows writes it once a minute.
Code that judges rows by age only reads it.
"""

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    SmallInteger,
    Table,
    insert,
    select,
    update,
)

from reliable_mq.database.sql_types import LongText
from reliable_mq.watched_time import WatchedTime, read, text_of

_ONLY = 1


def watched_time_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>watched_time`: one row with JSON: the last look, and the clock's jumps."""
    name = f"{prefix}watched_time"
    if name in metadata.tables:
        return metadata.tables[name]
    return Table(
        name,
        metadata,
        Column("number", SmallInteger, primary_key=True, autoincrement=False),
        Column("known", LongText, nullable=False),
    )


class SqlWatchedTime:
    """The known facts about the clocks of one database. Works in the caller's transaction."""

    def __init__(self, table: Table) -> None:
        this = table.c.number == _ONLY
        self.find = select(table.c.known).where(this)
        self._insert = insert(table)
        self._update = update(table).where(this)

    def load(self, connection: Connection) -> WatchedTime | None:
        """Return what is known; None: there was no look yet, or the row cannot be read."""
        return read(connection.execute(self.find).scalar_one_or_none())

    def save(self, connection: Connection, known: WatchedTime) -> None:
        """Write what is known. Only the process with the duty of removing rows may call it."""
        value = {"known": text_of(known)}
        if connection.execute(self._update.values(value)).rowcount == 0:
            connection.execute(self._insert, {"number": _ONLY, **value})
