"""Creates the tables, or brings tables of an older release to this one (revision 0002).

The models here have only a key: Django compares the options of unmanaged models, not their fields.
"""

from typing import Any, ClassVar

from django.db import migrations, models

from reliable_mq.contrib.django.configuration import table_prefix
from reliable_mq.contrib.django.schema import ToRevision


def _unmanaged(name: str, table: str, key: Any, **options: Any) -> migrations.CreateModel:
    """Return the model of one of our tables, which Django does not create."""
    fixed = {"managed": False, "default_permissions": ("view",)}
    place = {"db_table": f"{table_prefix()}{table}"}
    return migrations.CreateModel(name, [key], options={**fixed, **place, **options})


class Migration(migrations.Migration):
    """The first migration of Django. It was written at revision 0002 of the tables."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        ToRevision("0002"),
        _unmanaged(
            "MessageStub",
            "message_stub",
            ("seq", models.BigAutoField(primary_key=True)),
            verbose_name="message stub",
            permissions=[("settle_messages", "Can retry and void messages")],
        ),
        _unmanaged(
            "ConsumeLog",
            "consume_log",
            ("message_id", models.CharField(max_length=64, primary_key=True)),
            verbose_name="consume log",
        ),
        _unmanaged(
            "EscalationRow",
            "escalation",
            ("seq", models.BigAutoField(primary_key=True)),
            verbose_name="escalation",
        ),
        _unmanaged(
            "AuditRow",
            "audit",
            ("seq", models.BigAutoField(primary_key=True)),
            verbose_name="audit entry",
            verbose_name_plural="audit entries",
        ),
    ]
