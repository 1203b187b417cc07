"""Brings the tables to revision 0005: the list of attempts without an effect."""

from typing import Any, ClassVar

from django.db import migrations

from reliable_mq.contrib.django.schema import ToRevision


class Migration(migrations.Migration):
    """Written at revision 0005 of the tables."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("reliable_mq", "0002_failures_of_attempts")]
    operations: ClassVar[list[Any]] = [ToRevision("0005")]
