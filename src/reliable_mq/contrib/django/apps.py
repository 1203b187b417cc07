"""The app of Django."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.db.utils import OperationalError
from django.utils.module_loading import autodiscover_modules

from reliable_mq.errors import ReliableMQError, UsageError
from reliable_mq.plain_text import printable


class ReliableMQConfig(AppConfig):
    """`INSTALLED_APPS = [..., "reliable_mq.contrib.django"]`."""

    name = "reliable_mq.contrib.django"
    label = "reliable_mq"
    verbose_name = "Messages"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the module `consumers` of every app, and register the checks."""
        from reliable_mq.contrib.django import checks  # noqa: F401, PLC0415 - registers itself
        from reliable_mq.contrib.django.configuration import configured  # noqa: PLC0415 - settings

        post_migrate.connect(_empty_after_flush, sender=self, dispatch_uid="reliable_mq")
        connection_created.connect(_make_durable, dispatch_uid="reliable_mq")
        try:
            configured()
            autodiscover_modules("consumers")
        except ReliableMQError as error:
            _end_command(error)
            raise


def _end_command(error: ReliableMQError) -> None:
    """End a command of `manage.py` with the messages of a check: a wrong setting is no bug.

    `check` could not say it: it imports the views, which raise this, too. `runserver` waits for a
    change of a file, so it gets the error.
    """
    words = sys.argv
    if words[1:2] == ["reliable_mq"]:  # its codes and its lines are those of `reliable-mq`
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    is_command = Path(words[0]).name in ("manage.py", "django-admin", "__main__.py")
    if is_command and len(words) > 1 and words[1] != "runserver":
        from reliable_mq.contrib.django.setting_checks import faults  # noqa: PLC0415 - settings

        lines = (f"?: (reliable_mq.E001) {printable(each)}\n" for each in faults(error))
        said = "SystemCheckError: System check identified some issues:\n\nERRORS:\n"
        sys.exit(f"{said}{''.join(lines)}".rstrip())


def _empty_after_flush(using: str, **_more: Any) -> None:
    """Empty our tables when a `TransactionTestCase` empties the others; they have no models.

    Its flush sends this signal. So does `migrate`, before the first test.
    """
    from reliable_mq.contrib.django.schema import empty_for_tests  # noqa: PLC0415 - needs settings

    empty_for_tests(using)


def _make_durable(connection: Any, **_more: Any) -> None:
    """Let a file of SQLite have a write-ahead log, as our own connections do.

    Otherwise who reads waits for who writes, and the first connection of ours could not change it
    while Django is in a transaction.
    """
    from reliable_mq.contrib.django.configuration import aliases  # noqa: PLC0415 - needs settings

    if connection.vendor == "sqlite" and connection.alias in aliases():
        with suppress(OperationalError), connection.cursor() as cursor:  # somebody is writing now
            cursor.execute("PRAGMA journal_mode = WAL")
