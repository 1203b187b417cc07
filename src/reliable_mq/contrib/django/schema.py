"""Brings our tables to this release within a migration of Django, on its connection."""

from typing import Any

from django.db.migrations import RunPython
from sqlalchemy import Connection

from reliable_mq.contrib.django.configuration import aliases, name_of_alias
from reliable_mq.contrib.django.database import DjangoDatabase
from reliable_mq.database.sql_day_partitions import DayPartitions
from reliable_mq.database.sql_schema import REVISION, create_and_note, revision_of
from reliable_mq.extras import extra_of

__all__ = ["ToRevision"]


class ToRevision(RunPython):
    """The operation of each migration here: the tables become those of this release.

    The first one creates them as this release wants them, so the later ones find nothing to do. On
    tables of an older release, it runs the steps of `reliable-mq migrate`. There is no way back: a
    reverse migration changes nothing, because the tables are ledgers.
    """

    def __init__(self, revision: str) -> None:
        super().__init__(_bring, RunPython.noop)
        self._revision = revision

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return how a migration file names this operation."""
        return type(self).__qualname__, [self._revision], {}


def _bring(_apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    if alias not in aliases():
        return
    from reliable_mq.contrib.django.application import shared  # noqa: PLC0415 - needs settings

    database = shared().databases[name_of_alias(alias)]
    assert isinstance(database, DjangoDatabase)  # noqa: S101 - for type checkers
    with database.joined_engine.connect() as connection:
        noted = revision_of(connection, database.prefix)
        if noted is None:
            create_and_note(connection, database.metadata, database.prefix)
            _partition(database, connection)
        elif noted < REVISION:
            with extra_of("migrate"):
                from reliable_mq.migrations.sql_upgrade import upgrade  # noqa: PLC0415 - an extra

            upgrade(database.joined_engine, database.metadata, database.prefix)


def _partition(database: DjangoDatabase, connection: Connection) -> None:
    if database.by_day:
        days = DayPartitions(database.joined_engine, (database.stubs, database.logs))
        days.ensure(database.clock.now_on(connection))
