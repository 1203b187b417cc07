"""What a stub becomes that is sent again from the start, whoever asks for it: a person or a repair.

One place for both, so that nothing that a person's retry forgets is remembered by a repair: sends,
who gave it up, where it lay, and the attempts that consumers have used up. In the caller's
transaction.
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
    """Return what the columns of a stub become that no broker has, though one acknowledged it.

    When it is sent, and how often it was, stays as it is: that is the scheduler's, which has it in
    hand and tells a person when its sends are used up.

    Args:
        at: the time of the change.
    """
    return {
        "missed": true(),
        **dict.fromkeys(("broker_name", "queue_id", "offset", "owner", "lease_until"), null()),
        "update_date": at,
    }


def sent_again(at: Any) -> dict[str, Any]:
    """Return what the columns of a stub become: UNCONFIRMED, unsent, all its sends before it.

    No relay sends it, whose first send tells nobody anything, but a scheduler: consumers are told
    that it was missed and who has consumed it.

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
    """Lets attempts at messages start again; touches only those that nobody else holds.

    An update by message alone would wait in MySQL for a row that a consumer has inserted and not
    committed, while that consumer waits for the stub, which whoever has it sent again has locked.

    Args:
        logs: the consume log.
        dialect: the database's.
    """

    def __init__(self, logs: Table, dialect: str) -> None:
        log = logs.c
        these, received = is_among(log.message_id, "ids", dialect), log.state == _RECEIVED
        #: message id and consumer group of each attempt at `ids` that nobody has locked; locks them
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
        """Let attempts start again, or a message that has used them up would be given up unread.

        A running attempt goes on, unless its lease ended before `ended_before`. Nobody knows
        whether such an attempt had its effect, so the doubt stays. An owner that is alive after all
        finds the row not its own when it commits, and has no effect.
        """
        by_group: dict[str, list[str]] = {}
        for row in connection.execute(self.free, {"ids": list(message_ids)}):
            by_group.setdefault(row.consumer_group, []).append(row.message_id)
        for group, ids in sorted(by_group.items()):
            ours = {"group": group, "ids": ids}
            if ended_before is not None:
                connection.execute(self._release, ours | {"at": ended_before})
            connection.execute(self._forget, ours)
