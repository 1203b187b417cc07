"""Read all rows of one message from the tables of one database."""

import json
from typing import Any

from sqlalchemy import Connection, Table, and_, inspect, or_, select, true

from reliable_mq.database.attempt_list import attempts_of
from reliable_mq.database.row_values import is_skipped
from reliable_mq.database.sql_run_tables import of_known_runs
from reliable_mq.escalate.sql_audit import detail_of
from reliable_mq.escalate.stub_filter import is_correlation_masked, status_text
from reliable_mq.escalate.timeline import MessageHistory
from reliable_mq.sensitive import MASK, NOTHING_SENSITIVE, SensitiveFields


class SqlHistory:
    """Reads histories, each in the caller's transaction.

    Args:
        stubs: the message stub table.
        logs: the consume log.
        confirmations: the notices that came from other databases.
        escalations: the table of escalations.
        alerts: the table of alerts.
        notifiers: the table of notifiers.
        audit: the audit table.
        findings: the table of reconciliation findings. It exists after the first run.
        runs: the table of reconciliation runs; it exists, too.
    """

    def __init__(
        self,
        *,
        stubs: Table,
        logs: Table,
        confirmations: Table,
        escalations: Table,
        alerts: Table,
        notifiers: Table,
        audit: Table,
        findings: Table,
        runs: Table,
    ) -> None:
        self._stubs = stubs
        self._logs = logs
        self._confirmations = confirmations
        self._escalations = escalations
        self._alerts = alerts
        self._notifiers = notifiers
        self._audit = audit
        self._findings = findings
        self._runs = runs

    def read(self, connection: Connection, message_id: str) -> MessageHistory:
        """Return the rows of a message. The history is empty when there are none."""
        stub = connection.execute(
            select(self._stubs).where(self._stubs.c.message_id == message_id)
        ).one_or_none()
        logs = self._all(connection, self._logs, message_id, self._logs.c.consumer_group)
        audits = self._all(connection, self._audit, message_id, self._audit.c.seq)
        order = self._escalations.c.seq
        return MessageHistory(
            stub=dict(stub._mapping) if stub is not None else None,
            logs=logs,
            confirmations=self._all(
                connection,
                self._confirmations,
                message_id,
                self._confirmations.c.consumer_group,
            ),
            escalations=self._all(connection, self._escalations, message_id, order),
            alerts=self._alerts_of(connection, message_id),
            audits=[row | {"detail": detail_of(row["detail"])} for row in audits],
            findings=self._findings_of(connection, message_id),
        )

    @staticmethod
    def _all(
        connection: Connection, table: Table, message_id: str, order: Any
    ) -> list[dict[str, Any]]:
        wanted = select(table).where(table.c.message_id == message_id).order_by(order)
        return [dict(row._mapping) for row in connection.execute(wanted)]

    def _alerts_of(self, connection: Connection, message_id: str) -> list[dict[str, Any]]:
        alert, notifier, escalation = self._alerts.c, self._notifiers.c, self._escalations.c
        is_of_both = and_(alert.escalation_seq == escalation.seq, alert.notifier == notifier.name)
        wanted = (
            select(
                escalation.seq.label("escalation_seq"),
                notifier.name.label("notifier"),
                *(alert.state, alert.digest_id, alert.told_date),
                notifier.failures,
                notifier.note.label("notifier_note"),
                notifier.next_time,
            )
            .select_from(self._escalations)
            .join(self._notifiers, true())
            .outerjoin(self._alerts, is_of_both)
            .where(
                escalation.message_id == message_id,
                or_(alert.state.is_not(None), escalation.close_date.is_(None)),
            )
            .order_by(escalation.seq, notifier.name)
        )
        return [dict(row._mapping) for row in connection.execute(wanted)]

    def _findings_of(self, connection: Connection, message_id: str) -> list[dict[str, Any]]:
        if not inspect(connection).has_table(self._findings.name):
            return []
        finding = self._findings.c
        wanted = (
            select(self._findings)
            .where(finding.message_id == message_id, of_known_runs(self._findings, self._runs))
            .order_by(finding.create_date)
        )
        return [dict(row._mapping) for row in connection.execute(wanted)]


def _state_of(log: dict[str, Any]) -> str:
    if is_skipped(log):
        return "SKIPPED"
    return "CONSUMED" if log["state"] else "RECEIVED"


def readable(
    history: MessageHistory, fields: SensitiveFields = NOTHING_SENSITIVE
) -> dict[str, Any]:
    """Return a history as values for `json.dumps(…, default=str)`.

    The result has the columns of the stub, and one list of rows for each other table. `failures`
    of the consume log is a list of attempts.

    Args:
        history: the rows.
        fields: the sensitive fields of the payload; they are masked.
    """
    shown: dict[str, Any] = {}
    if history.stub is not None:
        shown |= history.stub
        shown["status"] = status_text(shown["status"])
        shown["content"] = fields.shown(bytes(shown["content"]))
        shown["properties"] = fields.masked_json(shown.get("properties") or "")
        if is_correlation_masked(fields, shown.get("correlation_id") or ""):
            shown["correlation_id"] = MASK
    shown["consume_logs"] = [
        log
        | {
            "state": _state_of(log),
            "failures": _listed(log.get("failures")),
        }
        for log in map(dict, history.logs)
    ]
    for name in ("confirmations", "escalations", "alerts", "audits", "findings"):
        shown[name] = [dict(row) for row in getattr(history, name)]
    if fields:
        for row in shown["findings"]:
            row["evidence"] = _masked_evidence(row["evidence"], fields)
    return shown


def _masked_evidence(text: str, fields: SensitiveFields) -> str:
    try:
        found = json.loads(text)
    except ValueError:
        return MASK
    return json.dumps(fields.masked_evidence(found)) if isinstance(found, dict) else MASK


def _listed(failures: str | None) -> list[dict[str, Any]]:
    return [
        {
            "attempt": each.number,
            "time": each.time,
            "end": each.end and each.end.value,
            "reason": each.reason,
        }
        for each in attempts_of(failures)
    ]
