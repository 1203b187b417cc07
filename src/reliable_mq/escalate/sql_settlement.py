"""End the life of a stub other than by confirmation: give it up, retry it, void it.

An action of a person applies to many stubs at once. In the caller's transaction it locks them in
one order, changes each stub whose status allows it, writes the audit, and closes the escalations.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, bindparam, func, null, select, true, update

from reliable_mq.confirm.sql_confirmation import SqlConfirmation, confirmation_of
from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.escalate.sql_audit import AuditEntry, SqlAudit
from reliable_mq.escalate.sql_escalations import SqlEscalations, escalations_of
from reliable_mq.escalate.stub_filter import status_text
from reliable_mq.outbox.sql_attempt_restarts import AttemptRestarts, sent_again
from reliable_mq.outbox.stub import StubEvent, groups_of, groups_text, next_status, statuses_before

_SEEN = ("status", "count", "given_up", "resend_time", "broker_name", "queue_id", "offset", "note")

NO_STUB = "there is no such stub"
CHANGED_SINCE = "it has changed since it was seen"

Seen = Mapping[str, datetime]
"""When each stub was last changed, as a person saw it, by message id."""


class SqlSettlement:
    """Gives stubs up for a consumer group, in the caller's transaction.

    Args:
        stubs: the message stub table.
        confirmation: finds the groups that have consumed a message.
        escalations: the escalations of the same database.
    """

    def __init__(
        self, stubs: Table, confirmation: SqlConfirmation, escalations: SqlEscalations
    ) -> None:
        self._confirmation = confirmation
        self._escalations = escalations
        stub = stubs.c
        legal = stub.status.in_([s.value for s in statuses_before(StubEvent.EXHAUSTED)])
        this = (stub.message_id == bindparam("id"), legal)
        self._lock = select(stub.required_groups, stub.given_up_by).where(*this).with_for_update()
        given_up = (
            update(stubs)
            .where(*this)
            .values(
                given_up_by=bindparam("by"), note=bindparam("text"), update_date=bindparam("at")
            )
        )
        self._exhaust_one = given_up
        self._exhaust_last = given_up.values(given_up=true(), resend_time=null())

    def exhaust(
        self,
        connection: Connection,
        message_id: str,
        *,
        group: str,
        reason: str,
        now: float,
        topic: str = "",
    ) -> None:
        """Record that a consumer group gave a message up, and escalate it.

        The stub is sent no more when every other required group has consumed the message or given
        it up. "Given up" is a column of its own: a send that is recorded late does not make the
        stub due again, and `count` stays the number of sends. The message is also escalated if it
        has no stub here (`topic` is then its topic), or if its stub does not require the group.
        """
        row = connection.execute(self._lock, {"id": message_id}).one_or_none()
        if row is not None and group in (required := groups_of(row.required_groups)):
            by = {*groups_of(row.given_up_by), group}
            waited_for = set(required) - by
            if waited_for:
                consumed = self._confirmation.consumed(connection, [message_id])
                waited_for -= {group for _, group in consumed}
            note = f"dead letter of {group}: {reason}"
            values = {"id": message_id, "text": note, "at": utc_datetime(now)}
            connection.execute(
                self._exhaust_one if waited_for else self._exhaust_last,
                values | {"by": groups_text(tuple(by))},
            )
        self._escalations.dead_letter(
            connection, group=group, message_id=message_id, topic=topic, reason=reason, now=now
        )


class SqlOperatorActions:
    """The actions of a person on stubs: retry and void. Works in the caller's transaction.

    Args:
        stubs: the message stub table.
        logs: the consume log.
        escalations: the escalations of the same database.
        audit: the audit of the same database.
        dialect: the SQLAlchemy dialect name of the database.
    """

    def __init__(
        self,
        stubs: Table,
        logs: Table,
        escalations: SqlEscalations,
        audit: SqlAudit,
        dialect: str,
    ) -> None:
        self._escalations = escalations
        self._audit = audit
        stub = stubs.c
        these = is_among(stub.message_id, "ids", dialect)
        self._lock = (
            select(
                stub.message_id,
                *(stub[name] for name in _SEEN),
                stub.update_date,
                func.length(stub.content).label("size"),
            )
            .where(these)
            .order_by(stub.message_id)  # one lock order: batches cannot deadlock
            .with_for_update()
        )
        change = update(stubs).where(these)
        settled: dict[str, Any] = {"note": bindparam("text"), "update_date": bindparam("at")}
        self._void = change.values(
            status=next_status(StubStatus.UNCONFIRMED, StubEvent.VOID).value,
            resend_time=null(),
            **settled,
        )
        self._retry = change.values(**sent_again(bindparam("at")), note=bindparam("text"))
        self._attempts = AttemptRestarts(logs, dialect)

    def retry(
        self,
        connection: Connection,
        message_ids: Sequence[str],
        actor: str,
        why: str,
        now: float,
        *,
        seen: Seen | None = None,
        run_id: str | None = None,
    ) -> dict[str, bool]:
        """Let stubs be sent again from the start. False: no such stub, or a retry is illegal.

        Args:
            connection: the caller's transaction.
            message_ids: of the stubs.
            actor: the person.
            why: the person's reason.
            now: the time, seconds since the epoch.
            seen: a stub that was changed at another time than this one stays as it is. None: the
                person has not said what they saw.
            run_id: identifies the entries in the audit that belong together.
        """
        done, legal = self._change(
            connection, StubEvent.RETRY, message_ids, actor, why, now, seen, run_id
        )
        if legal:
            self._attempts.forget(connection, legal)
        return done

    def void(
        self,
        connection: Connection,
        message_ids: Sequence[str],
        actor: str,
        why: str,
        now: float,
        *,
        seen: Seen | None = None,
        run_id: str | None = None,
    ) -> dict[str, bool]:
        """Void stubs. False: there is no such stub, or it was settled already. See `retry`."""
        done, _ = self._change(
            connection, StubEvent.VOID, message_ids, actor, why, now, seen, run_id
        )
        return done

    def _change(
        self,
        connection: Connection,
        event: StubEvent,
        message_ids: Sequence[str],
        actor: str,
        why: str,
        now: float,
        known: Seen | None,
        run_id: str | None,
    ) -> tuple[dict[str, bool], list[str]]:
        """Apply `event` to the stubs whose status allows it.

        Returns for each message id whether its stub was changed, and the ids of the changed stubs.
        """
        verb = event.value
        statement = self._retry if event is StubEvent.RETRY else self._void
        rows = connection.execute(self._lock, {"ids": list(message_ids)}).all()
        seen: dict[str, Any] = {row.message_id: row._mapping for row in rows}
        before = {status.value for status in statuses_before(event)}
        legal = [
            each
            for each in seen
            if seen[each]["status"] in before
            # a tombstone of a half message has nothing to send
            and (event is not StubEvent.RETRY or seen[each]["size"])
            and _is_as_known(seen[each], known)
        ]
        if legal:
            note = f"{verb} by hand{': ' if why else ''}{why}"
            connection.execute(statement, {"ids": legal, "text": note, "at": utc_datetime(now)})
            self._escalations.close(connection, legal, verb, now)
        done = dict.fromkeys(message_ids, False) | dict.fromkeys(legal, True)
        acts = [
            AuditEntry(
                actor=actor,
                action=f"stub {verb}",
                message_id=message_id,
                changed=changed,
                detail=_detail(seen.get(message_id), why, known, changed=changed),
                run_id=run_id,
            )
            for message_id, changed in done.items()
        ]
        self._audit.write_acts(connection, acts, now)
        return done, legal


def _is_as_known(seen: Any, known: Seen | None) -> bool:
    return known is None or known.get(seen["message_id"]) == seen["update_date"]


def _detail(seen: Any, why: str, known: Seen | None, *, changed: bool) -> dict[str, Any]:
    if seen is None:
        return {"why": why, "outcome": NO_STUB}
    status = status_text(seen["status"])
    before = {name: seen[name] for name in _SEEN if seen[name] is not None}
    detail = {"why": why, "before": before | {"status": status}}
    if changed:
        return detail
    return detail | {"outcome": f"it is {status}" if _is_as_known(seen, known) else CHANGED_SINCE}


def settlement_of(database: Database) -> SqlSettlement:
    """Return the settlement of a database."""
    return SqlSettlement(database.stubs, confirmation_of(database), escalations_of(database))


def operator_actions_of(database: Database) -> SqlOperatorActions:
    """Return the actions of a person on the stubs of a database."""
    audit, escalations = SqlAudit(database.audit), escalations_of(database)
    return SqlOperatorActions(database.stubs, database.logs, escalations, audit, database.dialect)
