"""Skip messages for a consumer group: a person says so, and the group handles them no more.

The row of the consume log becomes CONSUMED without an effect. So the next delivery is acknowledged
without a call of the handler, by workers of any release, whatever Redis remembers; and its stub
does not wait for the group any more. `duplicate_of` names the message itself: nothing had its
effect. A handler that runs right now has no claim any more: its commit is refused.

Works in the caller's transaction. Only messages that the group has received are skipped.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, bindparam, case, null, or_, select, update

from reliable_mq.confirm.sql_confirmation import SqlConfirmation
from reliable_mq.database.row_values import LogState, is_skipped
from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.escalate.sql_audit import AuditEntry, SqlAudit

ACTION = "stub skip"


class SkipCase(Enum):
    """What a skip finds."""

    OPEN = "open"  # an attempt is awaited, or its end is unknown: it can be skipped
    RUNNING = "running"  # it is handled right now: it can be skipped, and the handler is refused
    NOT_RECEIVED = "not received"
    CONSUMED = "consumed"
    SKIPPED = "skipped"
    DEAD_LETTER = "dead letter"


SKIPPABLE = (SkipCase.OPEN, SkipCase.RUNNING)


class SkipView(NamedTuple):
    """What a database knows of one message and one group.

    `says`: why it cannot be skipped. `next_attempt`: the group tries it no earlier; None: the row
    does not say.
    """

    case: SkipCase
    says: str = ""
    topic: str = ""
    owner: str = ""
    attempts: int = 0
    next_attempt: datetime | None = None


class SqlSkips:
    """Skips messages in one database.

    Args:
        logs: its consume log.
        confirmation: confirms its stubs.
        audit: its audit.
        dialect: its dialect.
    """

    def __init__(
        self, logs: Table, confirmation: SqlConfirmation, audit: SqlAudit, dialect: str
    ) -> None:
        self._confirmation = confirmation
        self._audit = audit
        log = logs.c
        these = (log.consumer_group == bindparam("group"), is_among(log.message_id, "ids", dialect))
        columns = (
            *(log.message_id, log.topic, log.state, log.attempt, log.owner, log.lease_until),
            *(log.consume_date, log.note, log.duplicate_of),
        )
        self._find = select(*columns).where(*these).order_by(log.message_id)
        self._lock = self._find.with_for_update()
        self._is_known = (
            select(log.message_id).where(log.consumer_group == bindparam("group")).limit(1)
        )
        told = bindparam("told", type_=log.confirm_time.type)
        # A person settles it: the row is consumed, without an effect and without an owner.
        self._skip = (
            update(logs)
            .where(*these, log.state == LogState.RECEIVED.value)
            .ordered_values(
                # first: MySQL computes in this order, and then the owner is gone
                (log.in_doubt, or_(log.in_doubt, log.owner.is_not(None))),
                (log.state, LogState.CONSUMED.value),
                (log.consume_date, bindparam("at")),
                (log.duplicate_of, log.message_id),
                (log.note, bindparam("text")),
                (log.owner, null()),
                (log.lease_until, null()),
                # the stub's database, if that is another one, waits for this notice
                (log.confirm_time, case((log.confirm_to.is_not(None), told), else_=null())),
            )
        )

    def knows(self, connection: Connection, group: str) -> bool:
        """Return whether the consume log has any row of a group."""
        return connection.execute(self._is_known, {"group": group}).first() is not None

    def views(
        self, connection: Connection, group: str, message_ids: Sequence[str], now: float
    ) -> dict[str, SkipView]:
        """Return what there is to be skipped, by message id; locks nothing."""
        return self._views(connection, self._find, group, message_ids, now)

    def skip(
        self,
        connection: Connection,
        group: str,
        message_ids: Sequence[str],
        *,
        actor: str,
        why: str,
        now: float,
        run_id: str | None = None,
    ) -> dict[str, str]:
        """Skip messages for a group; return for each why it was not skipped, "" if it was.

        Args:
            connection: the caller's transaction. At most a few hundred messages at once.
            group: the consumer group.
            message_ids: the messages.
            actor: the person; written to the audit and to the row.
            why: the person's reason.
            now: seconds since the epoch, by the clock of the database.
            run_id: identifies the entries in the audit that belong together.
        """
        found = self._views(connection, self._lock, group, message_ids, now)
        skipped = sorted(each for each, view in found.items() if view.case in SKIPPABLE)
        at = utc_datetime(now)
        if skipped:
            text = f"skipped by {actor}{': ' if why else ''}{why}"
            values: dict[str, Any] = {"group": group, "ids": skipped, "text": text}
            connection.execute(self._skip, values | {"at": at, "told": at})
            self._confirmation.catch_up(connection, skipped, now)
        acts = [
            AuditEntry(
                actor=actor,
                action=ACTION,
                message_id=message_id,
                changed=message_id in skipped,
                detail=_detail(group, why, view),
                run_id=run_id,
            )
            for message_id, view in found.items()
        ]
        self._audit.write_acts(connection, acts, now)
        return {each: view.says for each, view in found.items()}

    def _views(
        self,
        connection: Connection,
        statement: Any,
        group: str,
        message_ids: Sequence[str],
        now: float,
    ) -> dict[str, SkipView]:
        ids = list(dict.fromkeys(message_ids))
        rows = connection.execute(statement, {"group": group, "ids": ids}).all()
        seen = {row.message_id: _view(row, group, now) for row in rows}
        none = SkipView(SkipCase.NOT_RECEIVED, f"{group} has not received it, or has no row of it")
        return {each: seen.get(each, none) for each in ids}


def _view(row: Any, group: str, now: float) -> SkipView:
    known = (row.topic, row.owner or "", row.attempt)
    if row.state == LogState.CONSUMED:
        when = _moment(row.consume_date)
        if is_skipped(row._mapping):
            said = f"it is {row.note or 'skipped'} already{when}"
            return SkipView(SkipCase.SKIPPED, said, *known)
        return SkipView(SkipCase.CONSUMED, f"{group} has consumed it already{when}", *known)
    if row.owner is None and row.note is not None:
        says = f"it is a dead letter of {group}: nothing delivers it again, void its stub"
        return SkipView(SkipCase.DEAD_LETTER, says, *known)
    until: datetime | None = row.lease_until
    is_running = row.owner is not None and until is not None and until > utc_datetime(now)
    is_later = row.owner is None and until is not None and until > utc_datetime(now)
    case = SkipCase.RUNNING if is_running else SkipCase.OPEN
    return SkipView(case, "", *known, until if is_later else None)


def _moment(time: datetime | None) -> str:
    return "" if time is None else f", at {time:%Y-%m-%dT%H:%M:%SZ}"


def _detail(group: str, why: str, view: SkipView) -> Mapping[str, Any]:
    detail: dict[str, Any] = {"group": group, "why": why}
    if view.case not in SKIPPABLE:
        return detail | {"outcome": view.says}
    before: dict[str, Any] = {"attempt": view.attempts}
    if view.owner:
        before["owner"] = view.owner
    return detail | {"before": before}
