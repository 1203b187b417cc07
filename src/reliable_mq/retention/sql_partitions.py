"""Drop daily partitions of stubs and consume logs on PostgreSQL (P7).

To drop a partition costs as little as to rename a file, however many rows it has. A partition is
dropped only if all its rows may be removed. If one stub of a day is not settled, the partition
stays, and its rows are removed one by one, as in a table without partitions. Every step gives up
after 0.1 s if it does not get its lock. So senders wait no longer, and the next sweep tries again.
"""

import logging
from collections.abc import Sequence

from sqlalchemy import Connection, Engine, MetaData, Table, exists, literal, not_, or_, select, text
from sqlalchemy.exc import OperationalError

from reliable_mq.database.days import Day, days_over
from reliable_mq.database.sql_day_partitions import DayPartitions, limit_lock_wait
from reliable_mq.database.sql_stub_table import arrived_rows, is_settled
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.retention.retention import RemovedRows
from reliable_mq.retention.sql_retention import Ledger, SqlRetention
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)


class SqlPartitions:
    """The partitions of one database.

    Args:
        engine: the engine of a PostgreSQL database.
        stubs: the message stub table, partitioned by message id.
        logs: the consume log, also partitioned by message id.
        dependents: two tables whose rows are removed with a day: the notices of other databases
            (with stubs) and the business keys (with logs). Both have a column `message_id`.
        ledgers: stores the duty and the marks.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        stubs: Table,
        logs: Table,
        dependents: tuple[Table, Table],
        ledgers: SqlRetention,
    ) -> None:
        self._engine = engine
        self._partitions = DayPartitions(engine, (stubs, logs))
        self._stubs = stubs
        self._logs = logs
        self._told, self._keys = dependents
        self._ledgers = ledgers

    def ensure(self, now: float) -> list[str]:
        """Make the partitions of today and the next days; return the names of the new ones."""
        return self._partitions.ensure(now)

    def remove_stub_days(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None:
        """Drop the days on which every stub was settled before a time; `rows` counts days.

        None: another instance has the duty now.
        """
        return self._remove(self._stubs, self._told, before, owner, until, limit)

    def remove_log_days(
        self, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None:
        """Drop the days on which every message was consumed before a time and has no stub left.

        Returns the same as `remove_stub_days`.
        """
        return self._remove(self._logs, self._keys, before, owner, until, limit)

    def _remove(
        self, table: Table, dependent: Table, before: float, owner: str, until: float, limit: int
    ) -> RemovedRows | None:
        dropped = 0
        for day in days_over(self._partitions.days(table), before):
            try:
                with self._engine.begin() as connection:
                    if not self._ledgers.keeps(connection, owner, until):
                        return None
                    if self._has_rows_to_keep(connection, table, day, before):
                        continue
                    if self._remove_dependents(connection, dependent, day, limit):
                        return RemovedRows(dropped, True)  # the next run removes more of them
                    if self._drop(connection, table, day, before):
                        dropped += 1
            except OperationalError as error:
                application_events.PARTITION_STAYS.log(
                    log, partition=day.table(table.name), error=error.orig
                )
        return RemovedRows(dropped, False)

    def _has_rows_to_keep(
        self, connection: Connection, table: Table, day: Day, before: float
    ) -> bool:
        """Say whether a day has a row that must stay."""
        part = table.to_metadata(MetaData(), name=day.table(table.name))
        at = utc_datetime(before)
        if table is self._stubs:
            kept = or_(
                not_(is_settled(part.c.status)),
                part.c.update_date >= at,
                not_(arrived_rows(part, literal(at, part.c.update_date.type))),
            )
            return bool(connection.scalar(select(exists().where(kept))))
        kept = or_(part.c.state == 0, part.c.consume_date >= at, part.c.confirm_time.is_not(None))
        low, high = day.bounds
        stub = self._stubs.c.message_id
        has_stubs = exists().where(stub >= low, stub < high)
        return bool(connection.scalar(select(or_(has_stubs, exists().where(kept)))))

    def _remove_dependents(
        self, connection: Connection, table: Table, day: Day, limit: int
    ) -> bool:
        """Remove at most `limit` dependent rows of a day; say whether there were any."""
        low, high = day.bounds
        some = select(table.c.message_id).where(
            table.c.message_id >= low, table.c.message_id < high
        )
        found: Sequence[str] = connection.execute(some.limit(limit)).scalars().all()
        if found:
            connection.execute(table.delete().where(table.c.message_id.in_(found)))
        return bool(found)

    def _drop(self, connection: Connection, table: Table, day: Day, before: float) -> bool:
        """Lock the partition of a day against writers, check it again, and drop it."""
        quoted = self._engine.dialect.identifier_preparer.quote
        name = quoted(day.table(table.name))
        limit_lock_wait(connection)
        connection.execute(text(f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE"))
        if self._has_rows_to_keep(connection, table, day, before):
            return False
        ledger: Ledger = "stubs" if table is self._stubs else "logs"
        self._ledgers.move_mark(connection, ledger, utc_datetime(min(before, day.ends)))
        connection.execute(text(f"DROP TABLE {name}"))
        return True
