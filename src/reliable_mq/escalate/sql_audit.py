"""The audit: manual changes, with actor and reason, written in the transaction of the change.

Table `<prefix>audit`, see `sql_people_tables`. The repair of reconciliation writes to it, too.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy import (
    JSON,
    Connection,
    Dialect,
    Insert,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    insert,
    or_,
    select,
)

from reliable_mq.database.sql_types import PlainText, dialect_family, plain_text, utc_datetime
from reliable_mq.escalate.audit_filter import AuditFilter

_IN_TEXT = ("actor", "action", "message_id", "run_id", "changed", "detail")
"""The columns of an entry besides its number and its time."""


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
    """The audit of one database. Works in the caller's transaction.

    On PostgreSQL, the entries of a call are one JSON text, and the server makes the rows of it.
    psycopg looks for the placeholders of each row, which took most of the time of bulk work.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._insert = insert(table)
        self._insert_text = _insert_of_text(table)

    def write_acts(self, connection: Connection, acts: Iterable[AuditEntry], now: float) -> None:
        """Insert audit entries. `now` is in seconds since the epoch."""
        at = utc_datetime(now)
        rows = [
            {
                "actor": act.actor,
                "action": act.action,
                "message_id": act.message_id,
                "run_id": act.run_id,
                "changed": int(act.changed),
                "detail": detail_text(act.detail),
            }
            for act in acts
        ]
        if not rows:
            return
        if dialect_family(connection.dialect.name) != "postgresql":
            connection.execute(self._insert, [{"create_date": at, **row} for row in rows])
            return
        values = {"at": at, "rows": self._text_of(rows, connection.dialect)}
        connection.execute(self._insert_text, values)

    def _text_of(self, rows: list[dict[str, Any]], dialect: Dialect) -> str:
        """Return the rows as JSON, with the values that the columns would bind."""
        for name in _IN_TEXT:
            kind = self.table.c[name].type
            if isinstance(kind, PlainText):
                for row in rows:
                    row[name] = kind.process_bind_param(row[name], dialect)
        return msgspec.json.encode(rows).decode()

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
        if wanted.is_changed is not None:
            found = found.where(table.changed == int(wanted.is_changed))
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


def _insert_of_text(table: Table) -> Insert:
    """Return the statement that inserts the rows of a JSON text, on PostgreSQL."""
    columns = [column(name, table.c[name].type) for name in _IN_TEXT]
    text = cast(bindparam("rows", type_=Text), JSON)
    rows = func.json_to_recordset(text).table_valued(*columns).render_derived(with_types=True)
    moment = bindparam("at", type_=table.c.create_date.type)
    values = select(moment, *(rows.c[name] for name in _IN_TEXT))
    return insert(table).from_select(["create_date", *_IN_TEXT], values)


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
