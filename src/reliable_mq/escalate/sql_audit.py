"""The audit: what was changed by hand, by whom and why, in the transaction of the change.

Table `<prefix>audit`, see `sql_people_tables`; reconciliation's repair writes to it too.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, insert

from reliable_mq.database.sql_types import plain_text, utc_datetime


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What one person did to one message.

    Attributes:
        actor: who; the first 127 characters are kept.
        action: what, in a word or two: "stub retry".
        message_id: to which message.
        changed: False: something stood against it, `detail` says what.
        detail: why, from which state, chosen by what; a JSON object.
        run_id: names what several acts have in common, at most 32 characters.
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
        """Write down what was done."""
        at = utc_datetime(now)
        rows = [
            {
                "create_date": at,
                "actor": act.actor,
                "action": act.action,
                "message_id": act.message_id,
                "run_id": act.run_id,
                "changed": int(act.changed),
                "detail": plain_text(json.dumps(act.detail, default=str, ensure_ascii=False)),
            }
            for act in acts
        ]
        if rows:
            connection.execute(self._insert, rows)
