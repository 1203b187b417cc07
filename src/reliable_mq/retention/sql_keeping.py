"""Make the ledgers of a database for retention, and its partitions if it has some."""

from reliable_mq.database.sql_database import Database
from reliable_mq.escalate.sql_closed_escalations import SqlClosedEscalations
from reliable_mq.idempotency.sql_calls import SqlCalls
from reliable_mq.retention.sql_partitions import SqlPartitions
from reliable_mq.retention.sql_retention import SqlRetention


def retention_ledgers(database: Database) -> SqlRetention:
    """Return the ledgers of a database, for retention."""
    return SqlRetention(
        database.engine,
        stubs=database.stubs,
        logs=database.logs,
        told=database.confirmations,
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
