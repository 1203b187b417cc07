"""The audit: manual changes, with actor and reason, written in the transaction of the change.

Table `<prefix>audit`, see `sql_people_tables`. The repair of reconciliation writes to it, too.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, Table, insert, or_, select

from reliable_mq.database.sql_types import plain_text, utc_datetime
from reliable_mq.escalate.audit_filter import AuditFilter


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action of one person on one message.

    Attributes:
        actor: the person. The first 127 characters are kept.
        action: the action in a word or two, such as "stub retry".
        message_id: the message; empty when the action concerns no single message.
        changed: whether the action changed something. If not, `detail` has the reason.
        detail: a JSON object with the person's reason, the state before, and similar facts.
        run_id: identifies the entries that belong together, at most 32 characters.
    """

    actor: str
    action: str
    message_id: str
    changed: bool
    detail: Mapping[str, Any]
    run_id: str | None = None


class SqlAudit:
    """The audit of one database. Works in the caller's transaction."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._insert = insert(table)

    def write_acts(self, connection: Connection, acts: Iterable[AuditEntry], now: float) -> None:
        """Insert audit entries. `now` is in seconds since the epoch."""
        at = utc_datetime(now)
        rows = [
            {
                "create_date": at,
                "actor": act.actor,
                "action": act.action,
                "message_id": act.message_id,
                "run_id": act.run_id,
                "changed": int(act.changed),
                "detail": detail_text(act.detail),
            }
            for act in acts
        ]
        if rows:
            connection.execute(self._insert, rows)

    def wanted(self, wanted: AuditFilter) -> Select[Any]:
        """Return the statement that selects the entries that are wanted, in no order."""
        table = self.table.c
        found = select(self.table)
        if wanted.since is not None:
            found = found.where(table.create_date >= wanted.since)
        if wanted.until is not None:
            found = found.where(table.create_date < wanted.until)
        if wanted.actor:
            found = found.where(table.actor == wanted.actor)
        if wanted.action:
            found = found.where(table.action.icontains(wanted.action, autoescape=True))
        if wanted.text:
            has_text = [
                column.icontains(wanted.text, autoescape=True)
                for column in (table.message_id, table.detail)
            ]
            found = found.where(or_(*has_text))
        if wanted.is_changed:
            found = found.where(table.changed == 1)
        return found

    def entries(
        self, connection: Connection, wanted: AuditFilter, limit: int
    ) -> list[dict[str, Any]]:
        """Return the newest entries that are wanted, the newest first, without their numbers."""
        table = self.table.c
        found = self.wanted(wanted).order_by(table.create_date.desc(), table.seq.desc())
        rows = [dict(row._mapping) for row in connection.execute(found.limit(limit))]
        return [
            {name: value for name, value in row.items() if name != "seq"}
            | {"detail": detail_of(row["detail"])}
            for row in rows
        ]


def detail_text(detail: Mapping[str, Any]) -> str:
    """Return the detail of an entry as the table keeps it."""
    return plain_text(json.dumps(detail, default=str, ensure_ascii=False))


def detail_of(text: str) -> dict[str, Any]:
    """Return the detail of an entry. A text that is no JSON object is shown as it is."""
    try:
        detail = json.loads(text)
    except ValueError:
        detail = None
    return detail if isinstance(detail, dict) else {"why": text}
