"""Brings the tables to revision 0008: the column by which people find messages of one request."""

from typing import Any, ClassVar

from django.db import migrations

from reliable_mq.contrib.django.schema import ToRevision


class Migration(migrations.Migration):
    """Written at revision 0008 of the tables."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("reliable_mq", "0005_failed_attempts")]
    operations: ClassVar[list[Any]] = [ToRevision("0008")]
