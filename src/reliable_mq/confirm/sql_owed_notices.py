"""The notices that a consume log owes to the databases of its stubs.

The row itself is the outbox of its notice. The commit of the effect (or of the failure) writes
`confirm_time`, so that no crash can separate the two. It becomes null when the broker has
acknowledged the notice. The consumer of a message sends its notice at once. After a crash, any
process claims the notice when `confirm_time` has come. So a notice may go out twice, but none is
lost.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Table, and_, bindparam, null, select, update

from reliable_mq.database.row_values import LogState
from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.idempotency.sql_consume_log import NOTICE_LEASE_SECONDS, LogEntry


class OwedNotice(msgspec.Struct, frozen=True):
    """One row whose notice is due: its topic and its content.

    `retry_at`: when the next attempt after a failed one is expected; None: the message was
    consumed. `note`: why there is no next attempt.
    """

    topic: str
    group: str
    message_id: str
    is_consumed: bool = True
    attempt: int = 0
    retry_at: float | None = None
    note: str | None = None


def owed_of(entry: LogEntry) -> OwedNotice:
    """Return the notice that a delivery with a committed effect owes."""
    return OwedNotice(entry.confirm_to, entry.group, entry.message_id)


class SqlNotices:
    """Claims and settles the notices that the consume log of one database owes."""

    def __init__(self, engine: Engine, logs: Table) -> None:
        self._engine = engine
        dialect = engine.dialect.name
        log = logs.c
        self._due = (
            select(
                *(log.consumer_group, log.message_id, log.state, log.attempt, log.lease_until),
                *(log.confirm_to, log.note),
            )
            .where(log.confirm_time <= bindparam("at"))
            .order_by(log.confirm_time)
            .limit(bindparam("limit"))
            .with_for_update(skip_locked=True)
        )
        these = and_(
            log.consumer_group == bindparam("group"), is_among(log.message_id, "ids", dialect)
        )
        self._claim = update(logs).where(these).values(confirm_time=bindparam("until"))
        # CONSUMED is final: nothing can have changed since the notice was made.
        self._tell_consumed = (
            update(logs)
            .where(these, log.state == LogState.CONSUMED.value, log.confirm_time.is_not(None))
            .values(confirm_time=null())
        )
        # The notice was about this attempt; a later attempt has its own notice.
        self._tell_failed = (
            update(logs)
            .where(
                log.consumer_group == bindparam("group"),
                log.message_id == bindparam("message"),
                log.state == LogState.RECEIVED.value,
                log.attempt == bindparam("seen"),
            )
            .values(confirm_time=null())
        )
        # The last attempt had failed; a person wanted the message sent again.
        self._begin_anew = (
            update(logs)
            .where(
                these,
                log.state == LogState.RECEIVED.value,
                log.owner.is_(None),
                log.note.is_not(None),
                log.confirm_time.is_(None),
            )
            .values(attempt=0, note=null(), lease_until=null())
        )

    def claim(self, now: float, limit: int) -> list[OwedNotice]:
        """Claim at most `limit` due notices; they are due again after a short lease."""
        with self._engine.begin() as connection:
            at = utc_datetime(now)
            rows = connection.execute(self._due, {"at": at, "limit": limit}).all()
            until = utc_datetime(now + NOTICE_LEASE_SECONDS)
            for group, ids in _by_group(rows).items():
                connection.execute(self._claim, {"group": group, "ids": ids, "until": until})
        return [
            OwedNotice(
                row.confirm_to or "",
                row.consumer_group,
                row.message_id,
                row.state == LogState.CONSUMED,
                row.attempt,
                _seconds(row.lease_until),
                row.note,
            )
            for row in rows
        ]

    def record_acknowledged(self, owed: Sequence[OwedNotice]) -> None:
        """Record that the broker acknowledged notices."""
        consumed: dict[str, list[str]] = {}
        failed = []
        for each in owed:
            if each.is_consumed:
                consumed.setdefault(each.group, []).append(each.message_id)
            else:
                seen = {"group": each.group, "message": each.message_id, "seen": each.attempt}
                failed.append(seen)
        with self._engine.begin() as connection:
            for group, ids in sorted(consumed.items()):
                connection.execute(self._tell_consumed, {"group": group, "ids": sorted(ids)})
            if failed:
                connection.execute(self._tell_failed, failed)

    def reset_attempts(
        self, connection: Connection, group: str, message_ids: Sequence[str]
    ) -> None:
        """Reset the attempts of messages that this group gave up and reported as given up.

        The caller received them again, marked as missed. Nothing resends a message automatically
        that was given up, so a person wants it.
        """
        connection.execute(self._begin_anew, {"group": group, "ids": list(message_ids)})


def _by_group(rows: Sequence[Any]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for row in rows:
        grouped.setdefault(row.consumer_group, []).append(row.message_id)
    return grouped


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
