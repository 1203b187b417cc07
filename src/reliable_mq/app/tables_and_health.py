"""What operators do with an application: make its tables, migrate them, ask whether all is well."""

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
        """Create the tables that are missing; return the names of all of ours.

        Where there are several databases, a name is `database.table`.

        Raises:
            ConfigurationError: when there are tables of an older release: these are migrated.
        """
        return self.databases.create_tables()

    def migrate(self) -> list[str]:
        """Bring the tables to this release with Alembic; return the revisions that were run.

        Does what `reliable-mq migrate` does; needs the extra `migrations`. Where there are several
        databases, one is `database.revision`.

        Raises:
            ConfigurationError: when there are tables that no release of ours has made.
            Unavailable: when another process has been migrating them for a minute.
        """
        with extra_of("migrate"):
            from reliable_mq.migrations.sql_upgrade import (  # noqa: PLC0415 - an extra
                migrate_all,
            )

        return migrate_all(self.databases)

    def examine(self) -> list[Finding]:
        """Return what `reliable-mq doctor` finds: what would break a promise, and what to do.

        Reads only. A broker that is embedded in another process cannot be asked.
        """
        # Imported late: it needs the synchronous Redis, and nobody else does.
        from reliable_mq.doctor.redis_examination import examine_all  # noqa: PLC0415

        cluster = None if self._connections.is_embedded else self._connections
        leases = self._declared.leases(self.databases)
        unread = self._declared.unread_topics()
        return examine_all(self.databases, self.settings, leases, cluster, unread)
