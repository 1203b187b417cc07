"""Lets connections to MySQL and MariaDB keep the promises that PostgreSQL's keep by themselves."""

from typing import Any

from sqlalchemy import Engine, event

from reliable_mq.database.sql_faults import drop_lost_transactions

ISOLATION_LEVEL = "READ COMMITTED"
"""As PostgreSQL's. In MySQL's own REPEATABLE READ a transaction does not see what a rival committed
while it waited for him, and its gaps in indexes let schedulers wait for each other."""


def make_mysql_keep_promises(engine: Engine) -> None:
    """Let connections refuse what does not fit, and end with a transaction that the server ended.

    See `sql_faults.drop_lost_transactions` for the second.
    """

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        # Without it, text that is too long is cut, and ids become each other's.
        cursor.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')")
        cursor.close()

    drop_lost_transactions(engine)
