"""The consumer's protocol, as tables. Pure: knows neither Redis nor the database.

A *claim* is the right of one owner, named by a token, to run the handler for one (consumer group,
message). It exists twice: as a lease in Redis, which makes it cheap, and as a row of the consume
log, which decides. Redis may be lost, flushed or cut off at any moment. It may also remember what
the database has lost. The tables below say what happens then. One rule is behind them all: a
message is acknowledged only if its row says CONSUMED now. That row was committed together with the
effect. We take back only a row that a handler's own COMMIT committed before its effect was
complete. A restored backup, or a failover that loses commits, takes back both the row and the
effect.

Life of the row (the columns `state`, `owner`, `lease_until`):

    ABSENT   --consume--> CONSUMED                      the hot path: one commit
    ABSENT   --receive--> RUNNING --consume--> CONSUMED the two-step form
    RUNNING  --fail-----> FAILED  --receive--> RUNNING  the next attempt
    RUNNING  --release--> FAILED                        the same attempt again: it did not count
    RUNNING  --expire---> IN_DOUBT --receive--> RUNNING the owner died; another takes over
    RUNNING  --renew----> RUNNING                       the handler is still running
    CONSUMED --take back-> ABSENT                       a handler's COMMIT came before its end

FAILED and IN_DOUBT differ in what is known: a failed attempt ended, a doubtful one may have had any
effect outside the database (promise P5). Later attempts that fail or do not count keep this doubt
in the column `in_doubt`.
"""

from collections.abc import Mapping
from enum import Enum
from functools import partial

import msgspec

from reliable_mq.database.row_values import LogState
from reliable_mq.old_names import moved
from reliable_mq.transitions import after


class RowState(Enum):
    """The state of a consume-log row at one moment. RUNNING to FAILED differ by owner and lease."""

    ABSENT = "absent"
    RUNNING = "running"  # RECEIVED, has an owner, its lease has not expired
    IN_DOUBT = "in doubt"  # RECEIVED, has an owner, its lease has expired
    FAILED = "failed"  # RECEIVED, no owner
    CONSUMED = "consumed"


class RowEvent(Enum):
    """What can happen to a row."""

    RECEIVE = "receive"  # an owner begins an attempt, committed before the handler runs
    CONSUME = "consume"  # committed with the effect
    FAIL = "fail"  # the attempt ended without an effect, and this is known
    RELEASE = "release"  # the same, but the message was not at fault: the attempt does not count
    RENEW = "renew"  # the handler is still running: its lease is extended
    EXPIRE = "expire"  # the lease expired
    TAKE_BACK = "take back"  # its own attempt found that the handler had committed it too early


ROW_TRANSITIONS: Mapping[tuple[RowState, RowEvent], RowState] = {
    (RowState.ABSENT, RowEvent.CONSUME): RowState.CONSUMED,
    (RowState.ABSENT, RowEvent.RECEIVE): RowState.RUNNING,
    (RowState.ABSENT, RowEvent.FAIL): RowState.FAILED,
    (RowState.RUNNING, RowEvent.CONSUME): RowState.CONSUMED,
    (RowState.RUNNING, RowEvent.FAIL): RowState.FAILED,
    (RowState.RUNNING, RowEvent.RELEASE): RowState.FAILED,
    (RowState.RUNNING, RowEvent.RENEW): RowState.RUNNING,
    (RowState.RUNNING, RowEvent.EXPIRE): RowState.IN_DOUBT,
    (RowState.IN_DOUBT, RowEvent.RECEIVE): RowState.RUNNING,
    # Late but ours: the lease expired, nobody took over, the token still matches.
    (RowState.IN_DOUBT, RowEvent.CONSUME): RowState.CONSUMED,
    (RowState.IN_DOUBT, RowEvent.FAIL): RowState.FAILED,
    (RowState.IN_DOUBT, RowEvent.RELEASE): RowState.FAILED,
    (RowState.IN_DOUBT, RowEvent.RENEW): RowState.RUNNING,
    (RowState.FAILED, RowEvent.RECEIVE): RowState.RUNNING,
    (RowState.FAILED, RowEvent.FAIL): RowState.FAILED,
    (RowState.CONSUMED, RowEvent.TAKE_BACK): RowState.ABSENT,
}


def next_row(row: RowState, event: RowEvent) -> RowState:
    """Return the row after `event`.

    Raises:
        UsageError: the event is illegal for this row; nothing has changed.
    """
    return after(ROW_TRANSITIONS, row, event, f"a consume log that is {row.value}")


def row_of(state: int | None, owner: str | None, lease_until: float | None, now: float) -> RowState:
    """Return the state of a row's columns at `now`; `state` None means that there is no row."""
    if state is None:
        return RowState.ABSENT
    if state == LogState.CONSUMED:
        return RowState.CONSUMED
    if owner is None:
        return RowState.FAILED
    return RowState.RUNNING if lease_until is not None and lease_until > now else RowState.IN_DOUBT


class LeaseAnswer(Enum):
    """Redis's answer to a claim; the first four are the words of `claim.lua`."""

    DONE = "done"  # consumed, as Redis remembers
    HELD = "held"  # another owner has a lease that has not expired
    FIRST = "first"  # ours, and no earlier attempt is known
    AGAIN = "again"  # ours, after an attempt that failed or whose owner vanished
    UNREACHABLE = "unreachable"  # no answer: the database decides alone


class ClaimStep(Enum):
    """What to do with a delivery."""

    ACKNOWLEDGE = "acknowledge"  # a suppressed duplicate
    LOOK = "look"  # Redis says "done": read the row
    LATER = "later"  # another owner is handling it; not an attempt
    ONE_COMMIT = "one commit"  # CONSUMED and the effect together; there is no row yet
    RECEIVE_FIRST = "receive first"  # commit RECEIVED with the attempt, then the effect
    SINGLY = "singly"  # it may have killed its process: receive it first, without other messages
    ALONE = "alone"  # the same on its last attempt: run it while no other runs in the process
    GIVE_UP = "give up"  # attempts used up: dead letter, unless the row counts fewer


STEP_OF_LEASE: Mapping[LeaseAnswer, ClaimStep] = {
    LeaseAnswer.DONE: ClaimStep.LOOK,
    LeaseAnswer.HELD: ClaimStep.LATER,
    LeaseAnswer.FIRST: ClaimStep.ONE_COMMIT,
    LeaseAnswer.AGAIN: ClaimStep.RECEIVE_FIRST,
    LeaseAnswer.UNREACHABLE: ClaimStep.RECEIVE_FIRST,
}

# The step for each row that is found when our own row could not be inserted.
STEP_OF_ROW: Mapping[RowState, ClaimStep] = {
    RowState.CONSUMED: ClaimStep.ACKNOWLEDGE,
    RowState.RUNNING: ClaimStep.LATER,
    RowState.IN_DOUBT: ClaimStep.RECEIVE_FIRST,
    RowState.FAILED: ClaimStep.RECEIVE_FIRST,
}


class Claim(msgspec.Struct, frozen=True):
    """Redis's answer for one message.

    `attempt` counts this attempt (0: Redis does not know); `in_doubt`: an earlier attempt began,
    and its end is unknown; `wait`: the rest of another owner's lease, in seconds.
    """

    lease: LeaseAnswer
    attempt: int = 0
    in_doubt: bool = False
    wait: float = 0.0


UNREACHABLE = Claim(LeaseAnswer.UNREACHABLE)


def first_step(
    claim: Claim, *, attempts_max: int, log_receipt: bool, is_consumed: bool = False
) -> ClaimStep:
    """Decide what follows a claim.

    Redis's "done" is never trusted without the row. A database that failed over without its last
    commits, or was restored from a backup, has neither row nor effect; Redis still remembers both.
    In that case the row counts the attempts, because Redis knows none of them.

    Args:
        claim: Redis's answer.
        attempts_max: attempts after which a message is given up.
        log_receipt: always use the two-step form; handlers with external effects need it.
        is_consumed: the row says CONSUMED; used only if Redis says "done".
    """
    step = STEP_OF_LEASE[claim.lease]
    if step is ClaimStep.LOOK:
        step = ClaimStep.ACKNOWLEDGE if is_consumed else ClaimStep.RECEIVE_FIRST
    if step in (ClaimStep.ONE_COMMIT, ClaimStep.RECEIVE_FIRST) and claim.attempt > attempts_max:
        return ClaimStep.GIVE_UP
    if step is ClaimStep.ONE_COMMIT and log_receipt:
        return ClaimStep.RECEIVE_FIRST
    return step


def attempt_claimed(claim: Claim, attempts_max: int) -> int:
    """Return the number of the attempt that a claim allows, before its row is read.

    Redis counts a claim before it is known whether the handler will be called. So its count may be
    used up while the row has one attempt left. Then this attempt is the last one, and the row says
    when it was made. If only one attempt is allowed, no row records it: a claim uses it up.
    """
    return min(max(claim.attempt, 1), max(attempts_max, 2))


def attempt_after(row: RowState, row_attempt: int, redis_attempt: int) -> int:
    """Return the number of the attempt that begins now; it never falls, even if a side forgets."""
    seen = 0 if row is RowState.ABSENT else row_attempt
    return max(seen + 1, redis_attempt)


__getattr__ = partial(moved, __name__)
