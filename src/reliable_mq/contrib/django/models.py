"""Our tables as models of Django: for the admin, and for queries. They are not to be written.

`managed = False`: the migrations of this app create the tables by SQLAlchemy's definitions. So they
are the same as those of `reliable-mq create-tables`.
"""

from typing import Any, ClassVar

from django.db import models

from reliable_mq.contrib.django.configuration import table_prefix
from reliable_mq.database.row_values import LogState, StubStatus

SETTLE = "settle_messages"
"""The permission to retry and void stubs in the admin."""


def _table(name: str) -> str:
    return f"{table_prefix()}{name}"


def _choices(kind: Any) -> list[tuple[int, str]]:
    return [(each.value, each.name) for each in kind]


class ReadOnly(models.Model):
    """A row of ours. It cannot be saved or deleted here."""

    class Meta:
        abstract = True

    def save(self, *_given: Any, **_named: Any) -> None:
        """Refuse.

        Raises:
            TypeError: always.
        """
        raise TypeError("rows of reliable_mq are not written by Django: use its operator actions")

    def delete(self, *given: Any, **named: Any) -> Any:
        """Refuse; see `save`."""
        self.save(*given, **named)


class MessageStub(ReadOnly):
    """A message that a transaction committed."""

    seq = models.BigAutoField(primary_key=True)
    message_id = models.CharField(max_length=32, unique=True)
    topic = models.CharField(max_length=127)
    tag = models.CharField(max_length=255)
    message_key = models.CharField("message key", max_length=255)
    ordering_key = models.CharField(max_length=255)
    content_type = models.CharField(max_length=127)
    status = models.SmallIntegerField(choices=_choices(StubStatus))
    count = models.IntegerField("sends")
    resend_time = models.DateTimeField("next send", null=True)
    given_up = models.BooleanField()
    broker_name = models.CharField(max_length=127, null=True)
    required_groups = models.TextField()
    deliver_time = models.DateTimeField(null=True)
    create_date = models.DateTimeField()
    update_date = models.DateTimeField()
    note = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = _table("message_stub")
        verbose_name = "message stub"
        default_permissions = ("view",)
        permissions: ClassVar = [(SETTLE, "Can retry and void messages")]

    def __str__(self) -> str:
        return f"{self.topic} {self.message_id}"


class ConsumeLog(ReadOnly):
    """What a consumer group did with a message. A message has one row for each group."""

    message_id = models.CharField(max_length=64, primary_key=True)
    consumer_group = models.CharField(max_length=127)
    topic = models.CharField(max_length=127)
    state = models.SmallIntegerField(choices=_choices(LogState))
    attempt = models.IntegerField()
    in_doubt = models.BooleanField()
    create_date = models.DateTimeField()
    consume_date = models.DateTimeField(null=True)
    lease_until = models.DateTimeField(null=True)
    owner = models.CharField(max_length=64, null=True)
    duplicate_of = models.CharField(max_length=64, null=True)
    note = models.TextField(null=True)
    failure = models.TextField(null=True)
    failures = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = _table("consume_log")
        verbose_name = "consume log"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.consumer_group} {self.message_id}"


class EscalationRow(ReadOnly):
    """Something that a person must know; open while it has no `close_date`."""

    seq = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=32)
    message_id = models.CharField(max_length=64)
    consumer_group = models.CharField(max_length=127)
    topic = models.CharField(max_length=127)
    message_key = models.CharField("message key", max_length=255)
    reason = models.TextField()
    create_date = models.DateTimeField()
    close_date = models.DateTimeField(null=True)
    close_reason = models.CharField(max_length=32, null=True)

    class Meta:
        managed = False
        db_table = _table("escalation")
        verbose_name = "escalation"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.kind}: {self.topic} {self.message_id}"


class AuditRow(ReadOnly):
    """A change by a person or by a repair."""

    seq = models.BigAutoField(primary_key=True)
    create_date = models.DateTimeField()
    actor = models.CharField(max_length=127)
    action = models.CharField(max_length=32)
    message_id = models.CharField(max_length=64)
    changed = models.SmallIntegerField()
    detail = models.TextField()

    class Meta:
        managed = False
        db_table = _table("audit")
        verbose_name = "audit entry"
        verbose_name_plural = "audit entries"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.actor}: {self.action} {self.message_id}"
