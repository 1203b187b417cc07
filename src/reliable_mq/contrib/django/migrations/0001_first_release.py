"""Creates the tables, or brings tables of an older release to this one (revision 0002)."""

from typing import ClassVar

from django.db import migrations

from reliable_mq.contrib.django.configuration import table_prefix
from reliable_mq.contrib.django.schema import ToRevision

PREFIX = table_prefix()


class Migration(migrations.Migration):
    """The first migration of Django. It was written at revision 0002 of the tables."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [ToRevision("0002")]
