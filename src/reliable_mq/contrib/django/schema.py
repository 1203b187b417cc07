"""Brings our tables to this release within a migration of Django, on its connection."""

from typing import Any

from django.db import connections
from django.db.migrations import RunPython
from sqlalchemy import Connection, inspect

from reliable_mq.contrib.django.configuration import (
    aliases,
    is_under_test,
    name_of_alias,
    url_of,
)
from reliable_mq.contrib.django.database import DjangoDatabase
from reliable_mq.database.sql_day_partitions import DayPartitions
from reliable_mq.database.sql_schema import REVISION, create_and_note, revision_of
from reliable_mq.extras import extra_of
from reliable_mq.testing.sql_emptying import empty, is_for_tests

__all__ = ["ToRevision", "empty_for_tests"]


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


def empty_for_tests(alias: str) -> None:
    """Delete the rows of our ledgers, if the alias has our tables in a test database."""
    if not is_under_test() or alias not in aliases():
        return
    given, url = connections[alias].settings_dict, url_of(alias)
    if not is_for_tests(url) and given["NAME"] != (given.get("TEST") or {}).get("NAME"):
        return
    from reliable_mq.contrib.django.application import shared  # noqa: PLC0415 - needs settings

    database = shared().databases[name_of_alias(alias)]
    assert isinstance(database, DjangoDatabase)  # noqa: S101 - for type checkers
    with database.joined_engine.begin() as connection:
        if inspect(connection).has_table(database.stubs.name):
            empty(connection, database)


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
