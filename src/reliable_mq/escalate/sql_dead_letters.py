"""The database side of a retry of dead letters. The broker does the other side.

The broker cannot take part in a database transaction, so a retry has two transactions:

1. `begin` resets the attempts and writes the intent to the audit.
2. The broker sends the dead letters to the group again.
3. `done` writes the outcome to the audit, and the scheduler takes care of the stub again.

The intent is also a claim, for `CLAIM_SECONDS`: `taken` names the dead letters that somebody else
retries, or has retried since the caller looked. It is asked in the transaction of `begin`, and
these transactions follow one another (`sql_one_at_a_time`). So of two processes that retry one dead
letter at once, one sends it. `release` ends the claim on what the broker did not take. What got no
clear answer may have been sent, so that its claim runs on.

If the process dies in between, the dead letter is still in its topic and its escalation is open.
When the claim has ended, a person can retry it again, because consumers are idempotent.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from sqlalchemy import Connection, Table, and_, bindparam, exists, false, null, or_, select, update

from reliable_mq.database.row_values import LogState, StubStatus
from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.escalate.escalation import EscalationKind
from reliable_mq.escalate.sql_audit import AuditEntry, SqlAudit, detail_of, detail_text
from reliable_mq.escalate.sql_escalations import SqlEscalations

ACTION = "dlq retry"
CLAIM_SECONDS = 120.0
"""A retry that has begun has this time to send. Its process sends in the first half only."""
MEANWHILE = "meanwhile"
"""What the line about somebody else's retry begins with."""
REVIVED_SECONDS = 60.0
"""Seconds after a retry until the resend scheduler checks the stub of the dead letter."""


class DeadLetterState(msgspec.Struct, frozen=True):
    """What one database knows of a dead letter of one group.

    Attributes:
        consumed: when the group consumed the message later. None: it has not.
        retried: when the dead letter was last retried. None: never.
        is_voided: a person voided its stub.
        has_stub: its stub is in this database.
    """

    consumed: datetime | None = None
    retried: datetime | None = None
    is_voided: bool = False
    has_stub: bool = False


def both(states: Sequence[DeadLetterState]) -> DeadLetterState:
    """Merge what several databases know of one dead letter."""
    consumed = [state.consumed for state in states if state.consumed is not None]
    retried = [state.retried for state in states if state.retried is not None]
    return DeadLetterState(
        max(consumed, default=None),
        max(retried, default=None),
        any(state.is_voided for state in states),
        any(state.has_stub for state in states),
    )


class SqlDeadLetters:
    """The state of dead letters in one database. Works in the caller's transaction."""

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
        stub, log, act, open_ = stubs.c, logs.c, audit.table.c, escalations.table.c
        these = and_(
            log.consumer_group == bindparam("group"), is_among(log.message_id, "ids", dialect)
        )
        self._consumed = select(log.message_id, log.consume_date).where(
            these, log.state == LogState.CONSUMED.value
        )
        self._stubs = select(stub.message_id, stub.status).where(
            is_among(stub.message_id, "ids", dialect)
        )
        of_retries = (
            select(act.message_id, act.create_date, act.detail, act.actor, act.changed, act.run_id)
            .where(is_among(act.message_id, "ids", dialect), act.action == ACTION)
            .order_by(act.seq)
        )
        self._acts = of_retries.where(act.changed == 1)
        self._claims = of_retries.where(act.run_id.is_not(None))
        self._told = (
            update(audit.table)
            .where(act.message_id == bindparam("id"), act.run_id == bindparam("retry"))
            .values(detail=bindparam("told"))
        )
        # Reset the used-up attempts. Otherwise the group would give the message up at once.
        self._forget_attempts = (
            update(logs)
            .where(these, log.state == LogState.RECEIVED.value, log.owner.is_(None))
            .values(attempt=0, lease_until=null(), note=null())
        )
        self._done = (
            update(audit.table)
            .where(is_among(act.message_id, "ids", dialect), act.run_id == bindparam("retry"))
            .values(changed=1)
        )
        another = exists().where(
            open_.message_id == stub.message_id,
            open_.kind == EscalationKind.DEAD_LETTER.value,
            open_.open_key.is_not(None),
        )
        self._revive = (
            update(stubs)
            .where(
                is_among(stub.message_id, "ids", dialect),
                stub.status == StubStatus.UNCONFIRMED.value,
                or_(stub.given_up, stub.given_up_by != ""),
                ~another,
            )
            .values(
                given_up=false(),
                given_up_by="",
                count=0,
                resend_time=bindparam("later"),
                update_date=bindparam("at"),
                note=bindparam("text"),
            )
        )

    def states(
        self, connection: Connection, group: str, message_ids: Sequence[str]
    ) -> dict[str, DeadLetterState]:
        """Return the state of dead letters of a group, by message id."""
        ids = list(message_ids)
        logs = connection.execute(self._consumed, {"group": group, "ids": ids}).all()
        consumed = {row.message_id: row.consume_date for row in logs}
        retried: dict[str, datetime] = {}
        for row in connection.execute(self._acts, {"ids": ids}):
            if _is_of(row.detail, group):  # the last row is not the newest if a clock went back
                known = retried.get(row.message_id, row.create_date)
                retried[row.message_id] = max(known, row.create_date)
        rows = connection.execute(self._stubs, {"ids": ids})
        status = {row.message_id: row.status for row in rows}
        return {
            each: DeadLetterState(
                consumed.get(each),
                retried.get(each),
                status.get(each) == StubStatus.VOIDED.value,
                each in status,
            )
            for each in ids
        }

    def taken(
        self, connection: Connection, group: str, seen: Mapping[str, datetime | None], now: float
    ) -> dict[str, str]:
        """Return the dead letters that somebody else retries, or has retried, with who and when.

        Args:
            connection: the transaction of `begin`; no other one is between the two.
            group: the consumer group.
            seen: message id -> when it was last retried, as the caller knows it; None: never.
            now: the time, seconds since the epoch.
        """
        found: dict[str, str] = {}
        for row in connection.execute(self._claims, {"ids": list(seen)}):
            if not _is_of(row.detail, group):
                continue
            known = seen[row.message_id]
            at = f"{row.create_date:%Y-%m-%dT%H:%M:%SZ}"
            if row.changed and (known is None or row.create_date > known):
                found[row.message_id] = f"{MEANWHILE} {row.actor} has retried it, at {at}"
            elif _is_open(row.changed, row.detail) and (
                row.create_date > utc_datetime(now - CLAIM_SECONDS)
            ):
                found[row.message_id] = (
                    f"{MEANWHILE} {row.actor} retries it, since {at}; if that has failed, try"
                    f" again {CLAIM_SECONDS:.0f} s later"
                )
        return found

    def release(
        self,
        connection: Connection,
        unsent: Mapping[str, str],
        *,
        retry_id: str,
        detail: Mapping[str, str],
    ) -> None:
        """Write to the audit why dead letters were not sent; others can retry them at once.

        Args:
            connection: a transaction.
            unsent: message id -> why.
            retry_id: as `begin` had it.
            detail: what `begin` wrote.
        """
        self._tell(connection, unsent, "outcome", retry_id, detail)

    def note_unclear(
        self,
        connection: Connection,
        maybe: Mapping[str, str],
        *,
        retry_id: str,
        detail: Mapping[str, str],
    ) -> None:
        """Write to the audit why nobody knows whether dead letters were sent. Their claims run on.

        The arguments are those of `release`.
        """
        self._tell(connection, maybe, "unclear", retry_id, detail)

    def _tell(
        self,
        connection: Connection,
        reasons: Mapping[str, str],
        word: str,
        retry_id: str,
        detail: Mapping[str, str],
    ) -> None:
        rows = [
            {"id": message_id, "retry": retry_id, "told": detail_text({**detail, word: why})}
            for message_id, why in reasons.items()
        ]
        if rows:
            connection.execute(self._told, rows)

    def begin(
        self,
        connection: Connection,
        group: str,
        message_ids: Sequence[str],
        *,
        retry_id: str,
        actor: str,
        why: str,
        now: float,
        work: str = "",
    ) -> None:
        """Prepare dead letters for a retry, and write the intent to the audit.

        Args:
            connection: a transaction. Commit it before you ask the broker.
            group: the consumer group.
            message_ids: the message ids of the dead letters.
            retry_id: 32 characters that identify this retry.
            actor: the person who retries.
            why: the person's reason.
            now: the time, seconds since the epoch.
            work: identifies the work that this retry is a part of; "": there is none.
        """
        values = {"group": group, "ids": list(message_ids)}
        connection.execute(self._forget_attempts, values)
        self._escalations.free_open_keys(connection, message_ids, group, retry_id)
        acts = [
            AuditEntry(
                actor=actor,
                action=ACTION,
                message_id=message_id,
                changed=False,
                detail=intent(group, why, work),
                run_id=retry_id,
            )
            for message_id in message_ids
        ]
        self._audit.write_acts(connection, acts, now)

    def refuse(
        self,
        connection: Connection,
        refused: Mapping[tuple[str, str], str],
        *,
        actor: str,
        why: str,
        now: float,
    ) -> None:
        """Write refused retries to the audit. `refused` maps (group, message id) to the reason."""
        acts = [
            AuditEntry(
                actor=actor,
                action=ACTION,
                message_id=message_id,
                changed=False,
                detail={"group": group, "why": why, "outcome": outcome},
            )
            for (group, message_id), outcome in refused.items()
        ]
        self._audit.write_acts(connection, acts, now)

    def done(
        self,
        connection: Connection,
        group: str,
        message_ids: Sequence[str],
        *,
        retry_id: str,
        now: float,
    ) -> None:
        """Write to the audit that the broker has sent dead letters to their group again."""
        ids = {"ids": list(message_ids)}
        connection.execute(self._done, ids | {"retry": retry_id})
        self._escalations.close_dead_letters(connection, message_ids, group, now)
        later, text = utc_datetime(now + REVIVED_SECONDS), f"dead letter of {group} retried by hand"
        connection.execute(
            self._revive, ids | {"later": later, "at": utc_datetime(now), "text": text}
        )


def intent(group: str, why: str, work: str) -> dict[str, str]:
    """Return the detail of a retry in the audit; `work` "": it is a part of nothing."""
    return {"group": group, "why": why} | ({"work": work} if work else {})


def _is_open(changed: int, detail: str) -> bool:
    """Say whether a retry has begun, and nobody knows yet how it ended."""
    return not changed and "outcome" not in detail_of(detail)


def _is_of(detail: str, group: str) -> bool:
    """Say whether an audit detail names this consumer group. Invalid JSON names no group."""
    try:
        read = json.loads(detail)
    except ValueError:
        return False
    return isinstance(read, dict) and read.get("group") == group
