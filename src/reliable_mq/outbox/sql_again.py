"""What a stub becomes that is sent again from the start, whoever asks for it: a person or a repair.

One place for both, so that nothing that a person's retry forgets is remembered by a repair: sends,
who gave it up, where it lay, and the attempts that consumers have used up. In the caller's
transaction.
"""

from typing import Any

from sqlalchemy import Table, Update, and_, bindparam, false, null, or_, true, update

from reliable_mq.outbox.stub import StubEvent, StubStatus, next_status
from reliable_mq.sql_types import is_among

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


def forget_attempts(logs: Table, dialect: str) -> Update:
    """Return the statement that lets the attempts at `ids` start again.

    Or a message whose attempts are used up would be given up unread. A running attempt goes on.
    """
    log = logs.c
    idle = and_(log.state == _RECEIVED, log.owner.is_(None))
    these = is_among(log.message_id, "ids", dialect)
    return update(logs).where(these, idle).values(attempt=0, lease_until=null(), note=null())


def release_attempts(logs: Table, dialect: str) -> Update:
    """Return the statement that ends attempts at `ids` of owners whose lease ended before `at`.

    Nobody knows whether such an attempt had its effect, so the doubt stays. An owner that is alive
    after all finds the row not its own when it commits, and has no effect.
    """
    log = logs.c
    ended = or_(log.lease_until.is_(None), log.lease_until < bindparam("at"))
    dead = and_(log.state == _RECEIVED, log.owner.is_not(None), ended)
    these = is_among(log.message_id, "ids", dialect)
    freed = {"owner": null(), "lease_until": null(), "in_doubt": true()}
    return update(logs).where(these, dead).values(attempt=0, note=null(), **freed)
