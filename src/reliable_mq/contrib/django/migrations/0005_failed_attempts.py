"""Brings the tables to revision 0007: the index by which people find attempts that failed."""

from typing import Any, ClassVar

from django.db import migrations

from reliable_mq.contrib.django.schema import ToRevision


class Migration(migrations.Migration):
    """Written at revision 0007 of the tables."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("reliable_mq", "0004_stubs_by_key")]
    operations: ClassVar[list[Any]] = [ToRevision("0007")]
