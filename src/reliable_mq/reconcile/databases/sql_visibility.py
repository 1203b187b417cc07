"""Up to when a reader of a database sees all that was changed.

A transaction gives its rows the time of its statements and shows them when it commits. So all that
was changed before the oldest transaction under way is visible now, and of what was changed since
then something may still be missing. Times are the database's (`sql_clock`).
"""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, OperationalError

from reliable_mq.database.sql_types import family_of, mysql_code
from reliable_mq.errors import ConfigurationError, Unavailable
from reliable_mq.reconcile.databases.sql_adbc import APPLICATION
from reliable_mq.reconcile.databases.sql_connection import connected

SQLITE_WAIT_SECONDS = 5
_ACCESS_DENIED = 1227  # MySQL: needs the privilege PROCESS
_MYSQL_LIST_AGE_MAX = timedelta(seconds=0.1)

# The clock, the beginning of the oldest transaction of another session on this database, prepared
# ones included, and how many sessions do not show theirs. Our own readers write nothing.
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
# The clock, and the seconds since the oldest transaction began, which is told in whole ones. The
# server makes that list anew when nobody has asked for it during the last tenth of a second.
_OF_MYSQL = text(
    "SELECT utc_timestamp(6), utc_timestamp(6) - INTERVAL"
    " (max(timestampdiff(SECOND, trx_started, now())) + 1) SECOND"
    " FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> connection_id()"
)


def visible_until(url: str) -> datetime:
    """Return the moment before which every change is visible now, by the database's clock.

    A transaction that stays open, if only a reader's, holds it back. SQLite shows its transactions
    to nobody: there the answer is now, as soon as nobody writes.

    Raises:
        ConfigurationError: the database's user may not see the transactions of others.
        Unavailable: somebody has been writing to the SQLite file for five seconds.
        sqlalchemy.exc.SQLAlchemyError: the database failed.
    """
    with connected(url) as connection:
        family = family_of(connection.dialect.name)
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
            f"the database user {user} does not see the transactions of other users, so nobody"
            f" knows what is still to become visible: GRANT pg_read_all_stats TO {user}"
        )
    return _utc(now if oldest is None else min(now, oldest))


def _of_mysql(connection: Connection) -> datetime:
    try:
        now, oldest = connection.execute(_OF_MYSQL).one()
    except DBAPIError as error:
        if mysql_code(error) != _ACCESS_DENIED:
            raise
        raise ConfigurationError(
            "the database user does not see the transactions of other users, so nobody knows what"
            " is still to become visible: GRANT PROCESS ON *.* TO it"
        ) from error
    seen = now - _MYSQL_LIST_AGE_MAX
    return _utc(seen if oldest is None else min(seen, oldest))


def _of_sqlite(connection: Connection) -> datetime:
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {SQLITE_WAIT_SECONDS * 1000}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except OperationalError as error:
        if "readonly" in str(error.orig):
            return datetime.now(UTC)  # so nobody writes
        raise Unavailable(
            f"somebody has been writing to the SQLite file for {SQLITE_WAIT_SECONDS} seconds"
        ) from error
    return datetime.now(UTC)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
