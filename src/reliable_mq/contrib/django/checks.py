"""What `manage.py check` says about messaging; it connects to nothing."""

from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004
from django.db import connections

from reliable_mq.contrib.django.configuration import aliases
from reliable_mq.errors import ReliableMQError

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
        return [Error(str(error), id="reliable_mq.E001")]
    return found


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
