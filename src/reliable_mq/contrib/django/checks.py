"""What `manage.py check` says about messaging; only with `--database` it connects."""

import sys
from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004
from django.db import Error as DjangoError
from django.db import connections
from sqlalchemy.exc import SQLAlchemyError

from reliable_mq.contrib.django.configuration import aliases, name_of_alias
from reliable_mq.contrib.django.database import DjangoDatabase
from reliable_mq.contrib.django.misplaced import misnamed_consumers, objects_of_their_own
from reliable_mq.contrib.django.setting_checks import faults, unread_settings
from reliable_mq.database.sql_schema import differences
from reliable_mq.errors import ReliableMQError

_SHOWN = 3
_LEVELS = (None, "read committed")


@register("reliable_mq")
def check_settings(app_configs: Any, **_more: Any) -> list[CheckMessage]:
    """Check RELIABLE_MQ, and what its databases need."""
    del app_configs
    from reliable_mq.contrib.django.application import shared  # noqa: PLC0415 - needs settings

    try:
        shared()
        found = [each for alias in aliases() for each in _of_alias(alias)]
    except ReliableMQError as error:
        return [Error(each, id="reliable_mq.E001") for each in faults(error)]
    found += [Warning(each, id="reliable_mq.W005") for each in unread_settings()]
    found += [Warning(each, id="reliable_mq.W006") for each in misnamed_consumers()]
    found += [Warning(each, id="reliable_mq.W007") for each in objects_of_their_own()]
    return found


@register(Tags.database)
def check_tables(
    app_configs: Any, databases: Sequence[str] | None = None, **_more: Any
) -> list[CheckMessage]:
    """Check that the databases have our tables.

    A warning: `migrate` runs the checks before it makes them.
    """
    del app_configs
    if sys.argv[1:2] == ["migrate"]:
        return []
    try:
        return [
            each for alias in aliases() if alias in (databases or ()) for each in _tables_of(alias)
        ]
    except ReliableMQError:  # `check_settings` says it
        return []


def _tables_of(alias: str) -> list[CheckMessage]:
    from reliable_mq.contrib.django.application import shared  # noqa: PLC0415 - needs settings

    database = shared().databases[name_of_alias(alias)]
    assert isinstance(database, DjangoDatabase)  # noqa: S101 - for type checkers
    try:
        with database.joined_engine.connect() as connection:
            found = [str(each) for each in differences(connection, database.metadata)]
    except (DjangoError, SQLAlchemyError) as error:
        return [Warning(f"DATABASES[{alias!r}] cannot be used: {error}", id="reliable_mq.W004")]
    if not found:
        return []
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return [
        Warning(
            f"DATABASES[{alias!r}]: {'; '.join(found[:_SHOWN])}{more}.",
            hint=f"Run python manage.py migrate reliable_mq --database {alias}.",
            id="reliable_mq.W003",
        )
    ]


def _of_alias(alias: str) -> list[CheckMessage]:
    wrapper: Any = connections[alias]
    found: list[CheckMessage] = []
    if not wrapper.settings_dict["AUTOCOMMIT"]:
        found.append(
            Error(
                f"DATABASES[{alias!r}] has AUTOCOMMIT=False, so atomic blocks commit nothing.",
                hint="Leave AUTOCOMMIT out.",
                id="reliable_mq.E002",
            )
        )
    options = wrapper.settings_dict.get("OPTIONS") or {}
    level = options.get("isolation_level")
    if wrapper.vendor == "mysql" and (level.lower() if level else None) not in _LEVELS:
        found.append(
            Warning(
                f"DATABASES[{alias!r}] has the isolation level {level!r}: a consumer that waited "
                "for another transaction would not see what it committed.",
                hint="Leave isolation_level out: Django's default is 'read committed'.",
                id="reliable_mq.W001",
            )
        )
    if wrapper.vendor == "sqlite" and options.get("transaction_mode") != "IMMEDIATE":
        found.append(
            Warning(
                f"DATABASES[{alias!r}]: a transaction of SQLite that reads first and writes later "
                "fails when another one wrote in between.",
                hint="Set OPTIONS = {'transaction_mode': 'IMMEDIATE'}.",
                id="reliable_mq.W002",
            )
        )
    return found
