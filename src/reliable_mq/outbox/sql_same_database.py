"""Is a session's database ours? A stub in another one is found by no relay and by no scheduler.

URLs that are equal settle it. Two spellings of one server (a name and an address, a pooler, a
search path) do not, so then the databases themselves are asked, once for each engine.
"""

from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, Table, text

from reliable_mq.database.sql_faults import drop_lost_transactions
from reliable_mq.database.sql_places import place_of
from reliable_mq.database.sql_types import MYSQL, family_of
from reliable_mq.errors import UsageError

# When the server was started, to the microsecond, tells servers apart without any privilege; the
# table's number tells schemas of one database apart.
_IDENTITY = text("SELECT pg_postmaster_start_time(), current_database(), to_regclass(:table)::oid")
# MySQL has a number for every server, MariaDB of old none; host, port and files tell those apart.
_MYSQL_IDENTITY = text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('server_uuid', 'server_uid', 'server_id', 'hostname', 'port', 'socket', 'datadir')"
)


class SameDatabase:
    """Knows which engines lead to our database."""

    def __init__(self, engine: Engine, table: Table) -> None:
        self._ours = engine
        self._table = table
        self._known: WeakSet[Engine] = WeakSet((engine,))

    def check(self, connection: Connection) -> bool:
        """Say whether a connection is of an engine that was not met before.

        Raises:
            UsageError: when it leads to another database than ours; names both.
        """
        if connection.engine in self._known:
            return False
        if not self._is_ours(connection):
            theirs = connection.engine.url
            raise UsageError(
                f"the transaction is bound to {theirs.render_as_string()}, but this application's "
                f"database is {self._ours.url.render_as_string()}: a message written there would "
                "never be sent. Use a session or connection of this database, name another one by "
                "mq.transaction(…, database=…), or use a ReliableMQ of that one"
            )
        if connection.dialect.name in MYSQL:
            drop_lost_transactions(connection.engine)
        self._known.add(connection.engine)
        return True

    def _is_ours(self, connection: Connection) -> bool:
        theirs, ours = connection.engine.url, self._ours.url
        if place_of(theirs) == place_of(ours):
            return True
        if family_of(theirs.get_backend_name()) != family_of(ours.get_backend_name()):
            return False
        if connection.dialect.name == "sqlite":
            return False
        name = {"table": self._table.name}
        with self._ours.connect() as own:
            return _identity(connection, name) == _identity(own, name)


def _identity(connection: Connection, name: dict[str, str]) -> tuple[Any, ...]:
    if family_of(connection.dialect.name) == "mysql":
        server = sorted(map(tuple, connection.execute(_MYSQL_IDENTITY)))
        return (server, connection.execute(text("SELECT database()")).scalar_one())
    return tuple(connection.execute(_IDENTITY, name).one())
