"""Waits until a statement of somebody else waits for a lock in a real database."""

from sqlalchemy import Connection
from tests.waiting import until

from reliable_mq.database.sql_database import Database


def until_somebody_waits(database: Database) -> None:
    """Wait until a session of the database waits for a row that another one holds."""
    with database.engine.connect() as connection:
        until(lambda: _somebody_waits(connection))


def _somebody_waits(connection: Connection) -> bool:
    if connection.dialect.name == "postgresql":
        sql = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database()"
        )
    else:
        # InnoDB's own tables are not refreshed for somebody who looks again and again.
        sql = (
            "SELECT count(*) FROM information_schema.processlist WHERE command = 'Query'"
            " AND info LIKE 'INSERT INTO rmq_consume_log%%'"
        )
    count = connection.exec_driver_sql(sql).scalar_one()
    connection.rollback()
    return bool(count)
