"""Applies a notice in the database of the stubs, in the caller's transaction.

A stub's row is locked before its confirmations are read: notices of two groups at the same moment
must not each miss the other's row (as in `sql_confirmation`).
"""

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import Connection, Table, and_, bindparam, insert, select, update

from reliable_mq.confirm.notice import Notice
from reliable_mq.confirm.sql_confirmation import SqlConfirmation
from reliable_mq.database.row_values import LogState
from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.outbox.stub import groups_of


class Exhaust(Protocol):
    """Records that a consumer group gave a message up; see `escalate.sql_settlement`."""

    def __call__(
        self, connection: Connection, message_id: str, *, group: str, reason: str, now: float
    ) -> None: ...


class SqlNoticeBook:
    """The table of confirmations, and the stubs in the same database.

    Args:
        stubs: the message stub table.
        confirmation: the confirmation of the same database.
        exhaust: called for each message that a notice reports as given up.
        dialect: the database's dialect.
    """

    def __init__(
        self, stubs: Table, confirmation: SqlConfirmation, exhaust: Exhaust, dialect: str
    ) -> None:
        self._confirmation = confirmation
        self._exhaust = exhaust
        stub, changed = stubs.c, confirmation.table.c
        self._lock = (
            select(stub.message_id, stub.required_groups)
            .where(is_among(stub.message_id, "ids", dialect), stub.status == 0)
            .order_by(stub.message_id)
            .with_for_update()
        )
        self._known = select(changed.message_id, changed.state).where(
            is_among(changed.message_id, "ids", dialect),
            changed.consumer_group == bindparam("group"),
        )
        self._insert = insert(confirmation.table)
        this = and_(
            changed.message_id == bindparam("id"), changed.consumer_group == bindparam("group")
        )
        self._update = (
            update(confirmation.table)
            .where(this)
            .values(
                state=bindparam("new_state"),
                lease_until=bindparam("until"),
                notices=changed.notices + 1,
                update_date=bindparam("at"),
            )
        )

    def apply(self, connection: Connection, notice: Notice, now: float) -> None:
        """Record a notice for the stubs that wait for the group; confirm complete stubs.

        Ids without such a stub (settled, of another database, forged) change nothing.
        """
        waiting = self._waiting(connection, notice)
        if not waiting:
            return
        known: dict[str, int] = {
            row.message_id: row.state
            for row in connection.execute(self._known, {"ids": waiting, "group": notice.group})
        }
        changed = [each for each in waiting if known.get(each) != LogState.CONSUMED.value]
        rows = [_row(notice, each, now) for each in changed]
        new = [row for row in rows if row["message_id"] not in known]
        if new:
            connection.execute(self._insert, new)
        for row in rows:
            if row["message_id"] in known:
                connection.execute(self._update, _changed(row))
        self._confirmation.catch_up(connection, waiting, now)
        self._give_up(connection, notice, changed, now)

    def _waiting(self, connection: Connection, notice: Notice) -> list[str]:
        rows = connection.execute(self._lock, {"ids": notice.message_ids()}).all()
        return [row.message_id for row in rows if notice.group in groups_of(row.required_groups)]

    def _give_up(
        self, connection: Connection, notice: Notice, changed: Sequence[str], now: float
    ) -> None:
        for message_id in changed:
            if message_id in notice.given_up and message_id not in notice.consumed:
                reason = notice.given_up[message_id]
                self._exhaust(connection, message_id, group=notice.group, reason=reason, now=now)


def _row(notice: Notice, message_id: str, now: float) -> dict[str, Any]:
    at = utc_datetime(now)
    is_consumed = message_id in notice.consumed
    seconds = None if is_consumed else notice.failed.get(message_id)
    return {
        "message_id": message_id,
        "consumer_group": notice.group,
        "state": (LogState.CONSUMED if is_consumed else LogState.RECEIVED).value,
        "lease_until": None if seconds is None else utc_datetime(now + seconds),
        "notices": 1,
        "create_date": at,
        "update_date": at,
    }


def _changed(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row["message_id"],
        "group": row["consumer_group"],
        "new_state": row["state"],
        "until": row["lease_until"],
        "at": row["update_date"],
    }
