"""Run the migrations, or print their SQL. Needs Alembic (the extra `migrations`)."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from alembic import command, context, op
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, inspect

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_databases import Databases
from reliable_mq.database.sql_schema import REVISION, differences, lock_tables, revision_of
from reliable_mq.errors import ConfigurationError, UsageError

__all__ = ["migrate", "migrate_all", "pending", "script_text", "upgrade"]

_one_thread = Lock()
"""Alembic keeps its state in global variables of the process."""


@contextmanager
def _within_another_run() -> Iterator[None]:
    """Restore the global state of an outer Alembic run that has called us.

    An application may migrate our tables in its own `env.py` or in one of its own migrations.
    """
    earlier = [getattr(each, "_proxy", None) for each in (context, op)]
    try:
        yield
    finally:
        for proxy in earlier:
            if proxy is not None:
                proxy._install_proxy()


def _config(printed: io.StringIO | None = None, **attributes: Any) -> Config:
    config = Config(output_buffer=printed, attributes=attributes)
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def pending(connection: Connection, prefix: str) -> list[str]:
    """Return the revisions that the database lacks, the oldest first.

    A database at a revision of a newer release lacks none.
    """
    there = revision_of(connection, prefix) or ""
    return [each for each in _revisions(prefix) if each > there]


def _revisions(prefix: str) -> list[str]:
    revisions = ScriptDirectory.from_config(_config(prefix=prefix)).walk_revisions()
    return sorted(each.revision for each in revisions)


def upgrade(engine: Engine, metadata: MetaData, prefix: str) -> list[str]:
    """Bring the tables to this release, one process at a time; return the revisions that were run.

    On SQLite all of it is one transaction, because the transaction is the lock there. Between two
    transactions another process would see tables of an older release.

    Args:
        engine: an engine of the database, made by `Database`.
        metadata: the tables of this release.
        prefix: the prefix of the table names.

    Raises:
        ConfigurationError: when the tables lack something afterwards, because another program made
            them.
        Unavailable: when another process has held the lock for a minute.
    """
    with _one_thread, engine.connect() as connection, lock_tables(connection, prefix):
        wanted = pending(connection, prefix)
        if connection.dialect.name != "sqlite":
            connection.rollback()  # Alembic commits after each migration; the lock stays
        if wanted:
            with _within_another_run():
                command.upgrade(_config(prefix=prefix, connection=connection), REVISION)
        lacking = differences(connection, metadata)
        connection.commit()
    if lacking:
        raise ConfigurationError(
            f"{lacking[0]} though the database is at revision {REVISION}: its tables were not "
            "made by a release of this package"
        )
    return wanted


def migrate(database: Database) -> list[str]:
    """Bring the tables of a database to this release; return the revisions that were run.

    Creates them when there are none. Raises what `upgrade` raises, and what `check_folder` raises.
    """
    database.check_folder()
    if database.by_day and not inspect(database.engine).has_table(database.stubs.name):
        database.create_tables()  # a migration cannot know of partitions
        return [REVISION]
    return upgrade(database.engine, database.metadata, database.prefix)


def migrate_all(databases: Databases) -> list[str]:
    """Migrate several databases; return the revisions as `database.revision`.

    With one database it does the same as `migrate`.
    """
    if len(databases) == 1:
        return migrate(next(iter(databases.values())))
    return [f"{name}.{each}" for name, database in databases.items() for each in migrate(database)]


def script_text(dialect: str, prefix: str, since: str | None = None) -> str:
    """Return the SQL of the migrations after `since`, for people who run it by hand.

    Args:
        dialect: sqlite, postgresql, mysql or mariadb. The last two differ in the collation.
        prefix: the prefix of the table names.
        since: the revision of the database. None: it has no tables.

    Raises:
        UsageError: there is no revision `since`.
    """
    if since is not None and since not in (known := _revisions(prefix)):
        raise UsageError(f"there is no revision {since!r}; this release has {', '.join(known)}")
    printed = io.StringIO()
    config = _config(printed, prefix=prefix, dialect=dialect)
    with _one_thread, _within_another_run():
        command.upgrade(config, f"{since}:{REVISION}" if since else REVISION, sql=True)
    return printed.getvalue()
