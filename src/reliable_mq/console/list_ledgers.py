"""The lists of a database's ledgers beside the stubs: consume logs, escalations, the audit."""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, not_, or_, select

from reliable_mq.console.lists import Field, ListColumn, ListPage, RowList, WantedPage
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_pages import Window, page_of, where_equal
from reliable_mq.database.row_values import LogState, is_skipped
from reliable_mq.database.sql_consume_log_table import (
    failed_rows,
    received_rows,
    skipped_rows,
    unskipped_rows,
)
from reliable_mq.database.sql_types import PARTIAL_INDEXES, dialect_family, has_no_id_time
from reliable_mq.database.sql_windows import read_by_indexes, surely_after, times_span
from reliable_mq.escalate.audit_filter import AuditFilter
from reliable_mq.escalate.escalation import EscalationKind
from reliable_mq.escalate.sql_audit import SqlAudit, detail_of
from reliable_mq.measuring.sql_throughput import first_id

_LOG_STATES = {"received": received_rows, "consumed": unskipped_rows, "skipped": skipped_rows}


def _logs(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    with sources.reading(wanted.database) as (database, connection):
        table = database.logs
        log = table.c
        found = select(
            *(log.message_id, log.consumer_group, log.topic, log.state, log.attempt, log.owner),
            *(log.create_date, log.consume_date, log.in_doubt, log.failure, log.note),
            *(log.broker_name, log.queue_id, log.offset, log.duplicate_of),
        )
        found = where_equal(
            found, wanted, message=log.message_id, group=log.consumer_group, topic=log.topic
        )
        state = wanted.text("state")
        if state:
            found = found.where(_LOG_STATES[state](table))
        if wanted.values.get("failed") is not None:
            failed = failed_rows(table)
            found = found.where(failed if wanted.values["failed"] else not_(failed))
        if wanted.values.get("since"):
            found = found.where(log.create_date >= wanted.values["since"])
        if wanted.values.get("until"):
            found = found.where(log.create_date < wanted.values["until"])
        window = None
        if not wanted.text("message"):
            is_costly = bool(wanted.text("group") or wanted.values.get("failed"))
            served = _served(connection, table, wanted)
            window = Window((log.message_id,), served, is_costly)
        key = (log.message_id, log.consumer_group)
        rows, after = page_of(connection, found, key, wanted.cursor, wanted.limit, window)
    return ListPage([_log_row(row) for row in rows], after)


def _served(connection: Connection, logs: Table, wanted: WantedPage) -> list[ColumnElement[bool]]:
    """Return which rows a page looks through; an index has them in the order of their messages.

    That is the index of attempts without an effect yet, of failed attempts, of the group, or of
    all messages. MySQL has no index of failed attempts.
    """
    rows = _before(connection, logs, wanted.values.get("until"))
    has_partial = dialect_family(connection.dialect.name) in PARTIAL_INDEXES
    if wanted.text("state") == "received":
        return [received_rows(logs), *rows]
    if wanted.values.get("failed") and has_partial:
        return [failed_rows(logs), *rows]
    if wanted.text("group"):
        return [logs.c.consumer_group == wanted.text("group"), *rows]
    return rows


def _before(
    connection: Connection, logs: Table, until: datetime | None
) -> list[ColumnElement[bool]]:
    """Return the condition on ids that all messages of attempts before a time meet.

    Ids begin with the time of their message, which is before its first attempt. If there are ids
    without a time, there is no condition.
    """
    if until is None:
        return []
    read_by_indexes(connection)  # PostgreSQL cannot know that there are none of them
    untimed = select(logs.c.message_id).where(has_no_id_time(logs.c.message_id)).limit(1)
    if connection.execute(untimed).first() is not None:
        return []
    return [logs.c.message_id < first_id(surely_after(until))]


def _log_row(row: dict[str, Any]) -> dict[str, Any]:
    state = "CONSUMED" if row["state"] == LogState.CONSUMED.value else "RECEIVED"
    if state == "RECEIVED" and row["note"]:
        state = "FAILED"
    if is_skipped(row):  # its time is that of the person: there was no effect
        at = row["consume_date"]
        when = f", at {at:%Y-%m-%dT%H:%M:%SZ}" if at else ""
        told = f"{row['note'] or 'skipped by a person'}{when}"
        none = {"state": "SKIPPED", "consume_date": None, "skip_date": at}
        return {**row, **none, "failure": told}
    why = row["failure"] or row["note"] or ""
    why = f"in doubt: {why}" if row["in_doubt"] else why
    return {**row, "state": state, "skip_date": None, "failure": why}


LOGS = RowList(
    name="consume-logs",
    title="Consume logs",
    summary="What consumer groups did with messages: attempts and effects, the newest message"
    " first.",
    empty=(
        "No entry matches. Take a condition away, or look in another database: a consumer writes"
        " to the database of its effects."
    ),
    columns=(
        ListColumn("message_id", "Message", "message"),
        ListColumn("consumer_group", "Group"),
        ListColumn("topic", "Topic"),
        ListColumn("state", "State", "state"),
        ListColumn("attempt", "Attempts", "number"),
        ListColumn("create_date", "First attempt", "time"),
        ListColumn("consume_date", "Effect", "time"),
        ListColumn("failure", "Why the last attempt had none", "long"),
        ListColumn("owner", "Runs at"),
    ),
    fields=(
        Field("group", "Consumer group"),
        Field("topic", "Topic"),
        Field("state", "State", "choice", tuple(_LOG_STATES)),
        Field("failed", "An attempt failed", "flag"),
        Field("since", "First attempt since", "moment", hint="-1h or a UTC time"),
        Field("until", "First attempt until", "moment", hint="-5m or a UTC time"),
        Field("message", "Message id"),
    ),
    page=_logs,
    of_database=True,
    exported=("skip_date",),
    id_of=lambda row: f"{row['consumer_group']} {row['message_id']}",
)


def _escalations(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    with sources.reading(wanted.database) as (database, connection):
        column = database.escalations.c
        found = select(database.escalations)
        found = where_equal(
            found,
            wanted,
            kind=column.kind,
            message=column.message_id,
            group=column.consumer_group,
            topic=column.topic,
        )
        if wanted.values.get("no_dead_letters"):
            found = found.where(column.kind != EscalationKind.DEAD_LETTER.value)
        if wanted.values.get("open") is not None:
            is_open = column.open_key.is_not(None)
            found = found.where(is_open if wanted.values["open"] else not_(is_open))
        since = wanted.values.get("since")
        if since:
            found = found.where(column.create_date >= since)
        span = times_span(connection, column.seq, column.create_date, since, None)
        window = None if wanted.text("message") else Window((column.seq,), span)
        key = (column.seq,)
        rows, after = page_of(connection, found, key, wanted.cursor, wanted.limit, window)
    return ListPage([_escalation_row(row) for row in rows], after)


def _escalation_row(row: dict[str, Any]) -> dict[str, Any]:
    is_open = row["open_key"] is not None
    closed = f"closed: {row['close_reason']}" if row["close_reason"] else "closed"
    kept = {name: value for name, value in row.items() if name not in ("seq", "open_key")}
    return kept | {"state": "open" if is_open else closed}


ESCALATIONS = RowList(
    name="escalations",
    title="Escalations",
    summary="What did not settle by itself, and was told to people, the newest first.",
    empty="No escalation matches. Without a condition: nothing ever needed a person here.",
    columns=(
        ListColumn("create_date", "Since", "time"),
        ListColumn("kind", "What"),
        ListColumn("state", "State", "state"),
        ListColumn("message_id", "Message", "message"),
        ListColumn("consumer_group", "Group"),
        ListColumn("topic", "Topic"),
        ListColumn("message_key", "Key"),
        ListColumn("reason", "Reason", "long"),
        ListColumn("close_date", "Closed", "time"),
    ),
    fields=(
        Field("open", "Is open", "flag"),
        Field("no_dead_letters", "Without dead letters", "flag"),
        Field("kind", "What", "choice", tuple(each.value for each in EscalationKind)),
        Field("topic", "Topic"),
        Field("group", "Consumer group"),
        Field("since", "Since", "moment", hint="-1h or a UTC time"),
        Field("message", "Message id"),
    ),
    page=_escalations,
    of_database=True,
)


def _audit(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    with sources.reading(wanted.database) as (database, connection):
        audit = SqlAudit(database.audit)
        column = database.audit.c
        found = audit.wanted(
            AuditFilter(
                since=wanted.values.get("since"),
                until=wanted.values.get("until"),
                actor=wanted.text("by"),
                action=wanted.text("action"),
                text=wanted.text("holds"),
                is_changed=wanted.values.get("changed"),
            )
        )
        if wanted.text("work"):  # a retry of dead letters has its own number, and it in the detail
            work = wanted.text("work")
            is_of = or_(column.run_id == work, column.detail.contains(work, autoescape=True))
            found = found.where(is_of)
        asked = (wanted.values.get("since"), wanted.values.get("until"))
        span = times_span(connection, column.seq, column.create_date, *asked)
        window = Window((column.seq,), span)
        key = (column.seq,)
        rows, after = page_of(connection, found, key, wanted.cursor, wanted.limit, window)
    return ListPage([_audit_row(row) for row in rows], after)


def _audit_row(row: dict[str, Any]) -> dict[str, Any]:
    detail = detail_of(row["detail"])
    return {
        **{name: value for name, value in row.items() if name != "seq"},
        "detail": detail,
        "why": detail.get("why") or detail.get("reason") or detail.get("note") or "",
        "outcome": "changed" if row["changed"] else str(detail.get("outcome") or "not changed"),
    }


AUDIT = RowList(
    name="audit",
    title="Audit",
    summary="What people and repairs have changed, and what they were refused, the newest first.",
    empty="No entry matches. Take a condition away, or look in another database.",
    columns=(
        ListColumn("create_date", "When", "time"),
        ListColumn("actor", "Who"),
        ListColumn("action", "What"),
        ListColumn("message_id", "Message", "message"),
        ListColumn("outcome", "Outcome"),
        ListColumn("why", "Reason"),
        ListColumn("run_id", "Work"),
    ),
    fields=(
        Field("by", "Who"),
        Field("action", "What holds"),
        Field("holds", "Message or detail holds"),
        Field("since", "Since", "moment", hint="-1h or a UTC time"),
        Field("until", "Until", "moment", hint="-5m or a UTC time"),
        Field("changed", "Changed something", "flag"),
        Field("work", "Number of the work"),
    ),
    page=_audit,
    of_database=True,
)
