"""The admin: stubs, consume logs, escalations and the audit, to read. Stubs are retried or voided.

The two actions are those of `reliable-mq stub retry` and `stub void`. They write the same audit,
with the name of the user. They need the permission `reliable_mq.settle_messages`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.db.models import F, Q

from reliable_mq.cli.found_messages import history_of
from reliable_mq.contrib.django.configuration import name_of_alias
from reliable_mq.contrib.django.database import DjangoDatabase
from reliable_mq.contrib.django.models import (
    SETTLE,
    AuditRow,
    ConsumeLog,
    EscalationRow,
    MessageStub,
)
from reliable_mq.database.row_values import LogState, StubStatus, is_skipped
from reliable_mq.escalate.sql_history import readable
from reliable_mq.escalate.sql_operator_actions import OperatorActions
from reliable_mq.escalate.stub_filter import status_text
from reliable_mq.escalate.timeline import MessageHistory, timeline
from reliable_mq.outbox.stub import StubEvent
from reliable_mq.plain_text import printable, printable_lines

WHY = "by the admin of Django"
SKIPPED = "SKIPPED"
PAYLOAD_LENGTH_MAX = 20_000
"""Characters of a payload that a page shows."""


class RowsToRead(admin.ModelAdmin):
    """Rows that can be looked at."""

    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, *_given: Any, **_named: Any) -> bool:
        """Nobody adds rows."""
        return False

    def has_change_permission(self, *_given: Any, **_named: Any) -> bool:
        """Nobody changes rows."""
        return False

    def has_delete_permission(self, *_given: Any, **_named: Any) -> bool:
        """Nobody deletes rows."""
        return False


class RowsOfMessages(RowsToRead):
    """Rows of messages that can be retried or voided."""

    actions = ("retry", "void")

    def has_settle_permission(self, request: Any) -> bool:
        """Return whether the user may retry and void."""
        return bool(request.user.has_perm(f"reliable_mq.{SETTLE}"))

    @admin.action(
        description="Retry: send again, with all sends and attempts", permissions=["settle"]
    )
    def retry(self, request: Any, rows: Any) -> None:
        """Retry the chosen messages."""
        self._settle(request, rows, StubEvent.RETRY)

    @admin.action(description="Void: never send again", permissions=["settle"])
    def void(self, request: Any, rows: Any) -> None:
        """Void the chosen messages."""
        self._settle(request, rows, StubEvent.VOID)

    def _settle(self, request: Any, rows: Any, verb: StubEvent) -> None:
        from reliable_mq.contrib.django.application import shared  # noqa: PLC0415 - needs settings

        ids: Sequence[str] = sorted(set(rows.values_list("message_id", flat=True)))
        database = shared().databases[name_of_alias(rows.db)]
        assert isinstance(database, DjangoDatabase)  # noqa: S101 - for type checkers
        actions = OperatorActions(
            database,
            verb,
            actor=request.user.get_username(),
            why=WHY,
            engine=database.leading_engine,  # the request may have a transaction that locks
        )
        done: dict[str, bool] = {}
        for part in actions.change_ids(ids):
            done |= part
        changed = sum(done.values())
        if changed:
            self.message_user(request, f"{verb.value}: {changed} message(s)", messages.SUCCESS)
        if changed < len(ids):
            self.message_user(
                request,
                f"{len(ids) - changed} message(s) were left: "
                + _why_left([each for each in ids if not done.get(each)], rows.db),
                messages.WARNING,
            )


def _why_left(ids: Sequence[str], alias: str) -> str:
    """Return, as text, why stubs were not retried or voided."""
    found = MessageStub.objects.using(alias).filter(message_id__in=ids)
    statuses = Counter(status_text(each) for each in found.values_list("status", flat=True))
    reasons = [
        f"{count} {'is' if count == 1 else 'are'} {status} already"
        for status, count in statuses.items()
    ]
    if missing := len(ids) - sum(statuses.values()):
        reasons.append(f"{missing} without a stub here: its sender wrote none, or it was removed")
    return "; ".join(reasons)


@admin.register(MessageStub)
class MessageStubs(RowsOfMessages):
    """Message stubs."""

    list_display = (
        *("message_id", "topic", "message_key", "status", "waits_for_person", "count"),
        *("resend_time", "note"),
    )
    list_filter = ("status", "given_up", "topic")
    search_fields = ("=message_id", "=message_key")
    ordering = ("-seq",)
    readonly_fields = ("payload", "timeline")

    @admin.display(description="waits for a person", boolean=True, ordering="given_up")
    def waits_for_person(self, row: MessageStub) -> bool:
        """Return whether nothing more happens by itself."""
        return bool(row.given_up) and row.status == StubStatus.UNCONFIRMED

    @admin.display(description="payload")
    def payload(self, row: MessageStub) -> str:
        """Return the content of the message as text, without the values of sensitive fields."""
        from reliable_mq.contrib.django.application import shared  # noqa: PLC0415 - needs settings

        shown = readable(_history(row), shared()._declared.sensitive_of(row.topic))
        return printable_lines(str(shown["content"])[:PAYLOAD_LENGTH_MAX])

    @admin.display(description="timeline")
    def timeline(self, row: MessageStub) -> Any:
        """Return all that the databases know about the message, in order; no broker is asked."""
        from django.utils.html import format_html_join  # noqa: PLC0415 - needs settings

        return format_html_join(
            "",
            "<div>{} <b>{}</b> {}</div>",
            (
                (
                    each.time.isoformat(" ", timespec="milliseconds") if each.time else "now",
                    each.ledger,
                    printable(each.what),
                )
                for each in timeline(_history(row))
            ),
        )


def _history(row: MessageStub) -> MessageHistory:
    """Return the history of a stub from all databases: consumers may have one of their own."""
    from reliable_mq.contrib.django.application import shared  # noqa: PLC0415 - needs settings

    return history_of(list(shared().databases.values()), row.message_id)


@admin.register(EscalationRow)
class Escalations(RowsOfMessages):
    """Escalations."""

    list_display = (
        *("kind", "topic", "message_key", "consumer_group", "reason", "create_date"),
        *("close_date", "close_reason"),
    )
    list_filter = (("close_date", admin.EmptyFieldListFilter), "kind", "topic")
    search_fields = ("=message_id", "=message_key")
    ordering = ("-seq",)


class StateFilter(admin.SimpleListFilter):
    """Chooses consume logs by their state. What a person skipped is not called consumed."""

    title = "state"
    parameter_name = "state"

    def lookups(self, _request: Any, _model_admin: Any) -> list[tuple[str, str]]:
        """Return the states."""
        return [(each, each) for each in (*(state.name for state in LogState), SKIPPED)]

    def queryset(self, _request: Any, rows: Any) -> Any:
        """Return the rows of the chosen state."""
        chosen = self.value()
        skipped = Q(state=LogState.CONSUMED, owner=None, duplicate_of=F("message_id"))
        if chosen == SKIPPED:
            return rows.filter(skipped)
        if chosen not in LogState.__members__:
            return rows
        return rows.filter(state=LogState[chosen]).exclude(skipped)


@admin.register(ConsumeLog)
class ConsumeLogs(RowsToRead):
    """Consume logs."""

    list_display = (
        *("message_id", "consumer_group", "topic", "outcome", "attempt", "consume_date"),
        "note",
    )
    list_display_links = None
    list_filter = (StateFilter, "in_doubt", "consumer_group")
    search_fields = ("=message_id",)
    ordering = ("-create_date",)
    exclude = ("state",)
    readonly_fields = ("outcome",)

    @admin.display(description="state", ordering="state")
    def outcome(self, row: ConsumeLog) -> str:
        """Return the state, and SKIPPED where a person let the group skip the message."""
        return SKIPPED if is_skipped(vars(row)) else str(row.get_state_display())


@admin.register(AuditRow)
class Audit(RowsToRead):
    """The audit."""

    list_display = ("create_date", "actor", "action", "message_id", "changed")
    list_filter = ("action",)
    search_fields = ("=message_id", "=actor")
    ordering = ("-seq",)
