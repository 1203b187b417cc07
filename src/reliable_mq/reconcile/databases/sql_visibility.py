"""Find the moment before which all changes of a database are visible to a reader.

A transaction gives its rows the time of its statements, but shows them only when it commits. So all
changes from before the start of the oldest open transaction are visible now. Later changes may
still be invisible. Times are those of the database's clock (`sql_clock`).
"""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, OperationalError

from reliable_mq.database.sql_types import dialect_family, mysql_code
from reliable_mq.errors import ConfigurationError, Unavailable
from reliable_mq.reconcile.databases.sql_adbc import APPLICATION
from reliable_mq.reconcile.databases.sql_connection import connected

SQLITE_WAIT_SECONDS = 5
_ACCESS_DENIED = 1227  # MySQL: needs the privilege PROCESS
_MYSQL_LIST_AGE_MAX = timedelta(seconds=0.1)

# The clock; the start of the oldest transaction of other sessions on this database, including
# prepared ones; the number of sessions that hide theirs. Our own readers are left out: they write
# nothing.
_OF_POSTGRES = text(
    "SELECT clock_timestamp(),"
    " least(min(xact_start), (SELECT min(prepared) FROM pg_prepared_xacts"
    "  WHERE database = current_database())),"
    " count(*) FILTER (WHERE state IS NULL AND backend_type IS NULL)"
    " FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND (backend_type IS NULL OR backend_type = 'client backend')"
    " AND coalesce(application_name, '') <> :readers"
)
# The clock, and the start of the oldest transaction. Its age is in whole seconds, so one is added.
# The server renews this list only if nobody has read it within the last 0.1 s.
_OF_MYSQL = text(
    "SELECT utc_timestamp(6), utc_timestamp(6) - INTERVAL"
    " (max(timestampdiff(SECOND, trx_started, now())) + 1) SECOND"
    " FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> connection_id()"
)


def visible_until(url: str) -> datetime:
    """Return the moment before which every change is visible now, by the database's clock.

    A transaction that stays open holds this moment back, even if it only reads. SQLite does not
    show its transactions: there it waits until nobody writes, and returns the present time.

    Raises:
        ConfigurationError: the database's user may not see the transactions of others.
        Unavailable: another process has been writing to the SQLite file for five seconds.
        sqlalchemy.exc.SQLAlchemyError: the database failed.
    """
    with connected(url) as connection:
        family = dialect_family(connection.dialect.name)
        if family == "postgresql":
            return _of_postgres(connection)
        if family == "mysql":
            return _of_mysql(connection)
        return _of_sqlite(connection)


def _of_postgres(connection: Connection) -> datetime:
    now, oldest, hidden = connection.execute(_OF_POSTGRES, {"readers": APPLICATION}).one()
    if hidden:
        user = connection.scalar(text("SELECT current_user"))
        raise ConfigurationError(
            f"the database user {user} does not see the transactions of other users, so a run"
            f" could miss changes that are not visible yet: GRANT pg_read_all_stats TO {user}"
        )
    return _utc(now if oldest is None else min(now, oldest))


def _of_mysql(connection: Connection) -> datetime:
    try:
        now, oldest = connection.execute(_OF_MYSQL).one()
    except DBAPIError as error:
        if mysql_code(error) != _ACCESS_DENIED:
            raise
        raise ConfigurationError(
            "the database user does not see the transactions of other users, so a run could miss"
            " changes that are not visible yet: GRANT PROCESS ON *.* TO this user"
        ) from error
    seen = now - _MYSQL_LIST_AGE_MAX
    return _utc(seen if oldest is None else min(seen, oldest))


def _of_sqlite(connection: Connection) -> datetime:
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {SQLITE_WAIT_SECONDS * 1000}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except OperationalError as error:
        if "readonly" in str(error.orig):
            return datetime.now(UTC)  # a read-only file has no writers
        raise Unavailable(
            f"another process has been writing to the SQLite file for {SQLITE_WAIT_SECONDS} seconds"
        ) from error
    return datetime.now(UTC)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
