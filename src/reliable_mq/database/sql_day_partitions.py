"""Day partitions of stubs and consume logs on PostgreSQL, made ahead of time (P7).

Every step gives up after a tenth of a second if another transaction holds its lock. So senders wait
no longer than that, and the step is tried again later.
"""

import logging

from sqlalchemy import Connection, Engine, Table, text
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from reliable_mq.database.days import Day, day_in, wanted_days
from reliable_mq.errors import ConfigurationError
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

LOCK_MILLISECONDS = 100

_CHILDREN = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = to_regclass(:parent)"
)
_IS_PARTITIONED = text("SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(:parent)")


class DayPartitions:
    """The partitions of some tables of one database.

    Args:
        engine: a PostgreSQL database.
        tables: tables that are partitioned by message id.
    """

    def __init__(self, engine: Engine, tables: tuple[Table, ...]) -> None:
        self._engine = engine
        self._tables = tables

    def check(self) -> None:
        """Check that the tables are partitioned.

        Raises:
            ConfigurationError: a table is not.
        """
        with self._engine.begin() as connection:
            for table in self._tables:
                if not connection.scalar(_IS_PARTITIONED, {"parent": table.name}):
                    raise ConfigurationError(
                        f"retention='partitions' needs a partitioned table {table.name}: a table "
                        "is partitioned if it was created with this setting; use retention='rows'"
                    )

    def ensure(self, now: float) -> list[str]:
        """Make the partitions of today and the next days, and the default one; return the new ones.

        A day's partition cannot be made if its rows exist already or the table is locked. Its rows
        lie in the default partition until the next try.
        """
        made = []
        for table in self._tables:
            there = self._children(table)
            wanted = {f"{table.name}_default": "DEFAULT"}
            for day in wanted_days(now):
                low, high = day.bounds
                wanted[day.table(table.name)] = f"FOR VALUES FROM ('{low}') TO ('{high}')"
            for name, which in wanted.items():
                if name not in there and self._make(table, name, which):
                    made.append(name)
        return made

    def _make(self, table: Table, name: str, which: str) -> bool:
        quoted = self._engine.dialect.identifier_preparer.quote
        statement = f"CREATE TABLE {quoted(name)} PARTITION OF {quoted(table.name)} {which}"
        try:
            with self._engine.begin() as connection:
                limit_lock_wait(connection)
                connection.execute(text(statement))
        except (IntegrityError, OperationalError, ProgrammingError) as error:
            # Locked, just made by another process, or overlapping with rows in the default one.
            application_events.PARTITION_MISSING.log(log, partition=name, error=error.orig)
            return False
        return True

    def _children(self, table: Table) -> set[str]:
        with self._engine.begin() as connection:
            return set(connection.execute(_CHILDREN, {"parent": table.name}).scalars())

    def days(self, table: Table) -> list[Day]:
        """Return the days that have a partition of a table."""
        found = (day_in(name, table.name) for name in self._children(table))
        return [day for day in found if day is not None]


def limit_lock_wait(connection: Connection) -> None:
    """Limit a transaction's wait for a lock to `LOCK_MILLISECONDS`."""
    connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_MILLISECONDS}ms'"))
