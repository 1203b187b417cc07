"""Operations on an application: create and migrate its tables, examine its health."""

from reliable_mq.app.declarations import Declarations
from reliable_mq.app.thread_connections import Connections
from reliable_mq.database.sql_databases import Databases
from reliable_mq.doctor.finding import Finding
from reliable_mq.extras import extra_of
from reliable_mq.settings import Settings


class TablesAndHealth:
    """The part of `ReliableMQ` that operators call."""

    settings: Settings
    databases: Databases
    _connections: Connections
    _declared: Declarations

    def create_tables(self) -> list[str]:
        """Create the missing tables; return the names of all our tables.

        With several databases, a name is `database.table`.

        Raises:
            ConfigurationError: there are tables of an older release; migrate them.
        """
        return self.databases.create_tables()

    def migrate(self) -> list[str]:
        """Migrate the tables to this release with Alembic; return the revisions that were run.

        The same as `reliable-mq migrate`; needs the extra `migrations`. With several databases, a
        revision is `database.revision`.

        Raises:
            ConfigurationError: a table was not made by a release of reliable_mq.
            Unavailable: another process has been migrating the tables for a minute.
        """
        with extra_of("migrate"):
            from reliable_mq.migrations.sql_upgrade import (  # noqa: PLC0415 - an extra
                migrate_all,
            )

        return migrate_all(self.databases)

    def examine(self) -> list[Finding]:
        """Return the findings of `reliable-mq doctor`: what would break a promise, and what to do.

        Only reads. A broker that is embedded in another process is not examined.
        """
        # Imported late: only this needs the synchronous Redis client.
        from reliable_mq.doctor.redis_examination import examine_all  # noqa: PLC0415

        cluster = None if self._connections.is_embedded else self._connections
        leases = self._declared.leases(self.databases)
        unread = self._declared.unread_topics()
        return examine_all(self.databases, self.settings, leases, cluster, unread)
