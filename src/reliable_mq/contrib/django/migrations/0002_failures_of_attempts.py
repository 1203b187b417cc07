"""Brings the tables to revision 0004: periodic messages, and why attempts failed."""

from typing import Any, ClassVar

from django.db import migrations

from reliable_mq.contrib.django.schema import ToRevision


class Migration(migrations.Migration):
    """Written at revision 0004 of the tables."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("reliable_mq", "0001_first_release")]
    operations: ClassVar[list[Any]] = [ToRevision("0004")]
