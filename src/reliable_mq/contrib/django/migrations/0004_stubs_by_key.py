"""Brings the tables to revision 0006: the indexes by which people find stubs."""

from typing import Any, ClassVar

from django.db import migrations

from reliable_mq.contrib.django.schema import ToRevision


class Migration(migrations.Migration):
    """Written at revision 0006 of the tables."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("reliable_mq", "0003_list_of_attempts")]
    operations: ClassVar[list[Any]] = [ToRevision("0006")]
