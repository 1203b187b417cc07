"""Make the ledgers of a database for retention, and its partitions if it has some."""

from sqlalchemy import Connection, Table, bindparam, delete, exists, select

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.escalate.escalation import AlertState
from reliable_mq.idempotency.sql_calls import SqlCalls
from reliable_mq.retention.sql_partitions import SqlPartitions
from reliable_mq.retention.sql_retention import SqlRetention


class SqlClosedEscalations:
    """The closed escalations of one database, and the alerts of them.

    Works in the caller's transaction.

    Args:
        escalations: the table of escalations.
        alerts: the table of alerts.
        dialect: the kind of database.
    """

    def __init__(self, escalations: Table, alerts: Table, dialect: str) -> None:
        this, alert = escalations.c, alerts.c
        untold = exists().where(
            alert.escalation_seq == this.seq, alert.state == AlertState.GATHERED.value
        )
        self._old = (
            select(this.seq)
            .where(this.close_date < bindparam("before"), ~untold)
            .order_by(this.close_date)
            .limit(bindparam("limit"))
            .with_for_update(skip_locked=True)
        )
        self._remove_alerts = delete(alerts).where(is_among(alert.escalation_seq, "seqs", dialect))
        self._remove = delete(escalations).where(is_among(this.seq, "seqs", dialect))

    def remove(self, connection: Connection, before: float, limit: int) -> int:
        """Remove escalations that were closed before a time; return how many.

        An escalation stays while one of its alerts is not sent yet. `before` is in seconds since
        the epoch; `limit` is the most that one call removes.
        """
        values = {"before": utc_datetime(before), "limit": limit}
        seqs = list(connection.execute(self._old, values).scalars())
        for statement in (self._remove_alerts, self._remove) if seqs else ():
            connection.execute(statement, {"seqs": seqs})
        return len(seqs)


def retention_ledgers(database: Database) -> SqlRetention:
    """Return the ledgers of a database, for retention."""
    return SqlRetention(
        database.engine,
        stubs=database.stubs,
        logs=database.logs,
        notices=database.confirmations,
        keys=database.keys,
        duties=database.retention_duties,
        watched=database.watched_time,
        remove_calls=SqlCalls(database.calls, database.watched_time).remove_expired,
        remove_escalations=SqlClosedEscalations(
            database.escalations, database.alerts, database.engine.dialect.name
        ).remove,
    )


def partitions_of(database: Database, ledgers: SqlRetention | None = None) -> SqlPartitions:
    """Return the partitions of a database with partitioned tables."""
    return SqlPartitions(
        database.engine,
        stubs=database.stubs,
        logs=database.logs,
        dependents=(database.confirmations, database.keys),
        ledgers=ledgers or retention_ledgers(database),
    )
