"""Sets up connections to MySQL and MariaDB so that they keep the promises that PostgreSQL keeps."""

from typing import Any

from sqlalchemy import Engine, event

from reliable_mq.database.sql_faults import drop_lost_transactions

ISOLATION_LEVEL = "READ COMMITTED"
"""As in PostgreSQL. In MySQL's default, REPEATABLE READ, a transaction that waited for another one
does not see its commit. Also, gap locks in indexes make schedulers wait for each other."""


def make_mysql_strict(engine: Engine) -> None:
    """Make connections refuse values that do not fit, and drop them after a server-side rollback.

    For the second, see `sql_faults.drop_lost_transactions`.
    """

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        # Without it, text that is too long is cut, and different ids become equal.
        cursor.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')")
        cursor.close()

    drop_lost_transactions(engine)
