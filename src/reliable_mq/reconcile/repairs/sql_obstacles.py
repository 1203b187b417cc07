"""Find the obstacles to a repair: compare a stub as it is now with the values that the run saw.

Receives a repair and the locked row of its stub. Returns why the stub is not repaired, or "".
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from reliable_mq.database.row_values import StubStatus
from reliable_mq.outbox.stub import groups_of
from reliable_mq.reconcile.repairs.repair import AGAIN, Repair, RepairAction

LOCKED = "somebody is at work on it; left alone"
CONSUMED = "a consumer group has consumed it; left alone"
GONE = "the stub is gone"
MOVED = "the stub moved since; left alone"
SETTLED = "the stub is settled; left alone"
_OTHERS = "another required group may still consume it; left alone"
_WAITS = "it is due already; nothing to change"
_TOLD = "a person was told of it; left alone"
_NO_BROKER = "no ledger names the broker; give --broker-name"


def is_in_hand(stub: Any) -> bool:
    """Return whether the resend scheduler will handle a stub when it is due.

    The scheduler sends it again with growing waits, and escalates it when its sends are used up.
    """
    is_open = stub.status == StubStatus.UNCONFIRMED and not stub.given_up
    return bool(is_open and stub.resend_time is not None)


def obstacle(
    repair: Repair,
    stub: Any,
    at: datetime,
    *,
    against: Mapping[str, str],
    broker_name: str | None,
    is_following: bool,
) -> str:
    """Return the obstacle to a repair; "": there is none.

    Args:
        repair: the action, with the values that the run saw.
        stub: the row of the stub. None: another transaction has locked it.
        at: the time.
        against: message id -> why the message must not be given up.
        broker_name: the broker whose log has the record. None: unknown.
        is_following: whether the run repeats itself. Then it does not shorten the scheduler's
            waits, and does not repair stubs that were escalated.
    """
    seen = repair.seen
    if stub is None:
        return LOCKED
    there = (stub.status, stub.count, stub.update_date)
    if there != (seen["stub_status"], seen["stub_count"], seen["stub_update_date"]):
        return MOVED
    if repair.action in AGAIN:
        return _against_sending(stub, at, is_following=is_following)
    if repair.action is RepairAction.MARK and broker_name is None:
        return _NO_BROKER
    if repair.action is RepairAction.VOID:
        return _against_voiding(repair, stub, against)
    return ""


def _against_sending(stub: Any, at: datetime, *, is_following: bool) -> str:
    if is_in_hand(stub):
        is_due = stub.resend_time <= at
        if stub.broker_name is None and (is_following or is_due):
            return _WAITS
        return LOCKED if stub.lease_until is not None and stub.lease_until > at else ""
    is_escalated = stub.status == StubStatus.UNCONFIRMED
    return _TOLD if is_escalated and is_following else ""


def _against_voiding(repair: Repair, stub: Any, against: Mapping[str, str]) -> str:
    if stub.status != StubStatus.UNCONFIRMED:
        return SETTLED
    if repair.message_id in against:
        return against[repair.message_id]
    return _OTHERS if set(groups_of(stub.required_groups)) - set(repair.groups) else ""
