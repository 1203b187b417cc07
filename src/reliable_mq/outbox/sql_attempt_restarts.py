"""Resets a stub that is sent again from the start, after a person's retry or a repair.

Both use this module, so that they reset the same things: the count of sends, the groups that gave
it up, its position, and the used-up attempts of consumers. Runs in the caller's transaction.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, bindparam, false, null, or_, select, true, update

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_types import is_among
from reliable_mq.outbox.stub import StubEvent, next_status

_RECEIVED = 0


def unsent(at: Any) -> dict[str, Any]:
    """Return the new columns of a stub whose acknowledged message no broker has.

    The resend time and the count of sends stay: they belong to the scheduler. It still sends the
    stub, and informs a person when its sends are used up.

    Args:
        at: the time of the change.
    """
    return {
        "missed": true(),
        **dict.fromkeys(("broker_name", "queue_id", "offset", "owner", "lease_until"), null()),
        "update_date": at,
    }


def sent_again(at: Any) -> dict[str, Any]:
    """Return the new columns of a stub that starts again: UNCONFIRMED, unsent, with count 0.

    A scheduler sends it, not a relay: a relay's first send carries no extra facts. The scheduler
    informs consumers that the message was missed, and which groups have consumed it.

    Args:
        at: when it is due, a time or a parameter; also the time of the change.
    """
    return {
        **unsent(at),
        "status": next_status(StubStatus.VOIDED, StubEvent.RETRY).value,
        "count": 0,
        "given_up": false(),
        "given_up_by": "",
        "resend_time": at,
    }


class AttemptRestarts:
    """Restarts attempts at messages; touches only rows that nobody else has locked.

    An update by message id alone could deadlock in MySQL. It would wait for a row that a consumer
    has inserted but not committed. That consumer waits for the stub, which this caller has locked.

    Args:
        logs: the table of the consume log.
        dialect: the database's dialect.
    """

    def __init__(self, logs: Table, dialect: str) -> None:
        log = logs.c
        these, received = is_among(log.message_id, "ids", dialect), log.state == _RECEIVED
        #: message id and consumer group of each unlocked attempt at `ids`; the query locks them
        self.free = (
            select(log.message_id, log.consumer_group)
            .where(these, received)
            .with_for_update(skip_locked=True)
        )
        ours = update(logs).where(these, received, log.consumer_group == bindparam("group"))
        self._forget = ours.where(log.owner.is_(None)).values(
            attempt=0, lease_until=null(), note=null()
        )
        ended = or_(log.lease_until.is_(None), log.lease_until < bindparam("at"))
        freed = {"owner": null(), "lease_until": null(), "in_doubt": true()}
        self._release = ours.where(log.owner.is_not(None), ended).values(
            attempt=0, note=null(), **freed
        )

    def forget(
        self,
        connection: Connection,
        message_ids: Sequence[str],
        *,
        ended_before: datetime | None = None,
    ) -> None:
        """Reset the used-up attempts; otherwise the message would be given up without an attempt.

        A running attempt continues, unless its lease ended before `ended_before`. It is unknown
        whether such an attempt had its effect, so the row stays in doubt. If its owner is still
        alive, it no longer owns the row at its commit, and has no effect.
        """
        by_group: dict[str, list[str]] = {}
        for row in connection.execute(self.free, {"ids": list(message_ids)}):
            by_group.setdefault(row.consumer_group, []).append(row.message_id)
        for group, ids in sorted(by_group.items()):
            ours = {"group": group, "ids": ids}
            if ended_before is not None:
                connection.execute(self._release, ours | {"at": ended_before})
            connection.execute(self._forget, ours)
