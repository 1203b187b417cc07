"""Half messages of the outbox: their life in the process that sent them, and what is answered when
a broker asks for them. Pure.

A stub whose message went out as a half is a stub like any other: nothing in its row says so. The
half only changes how the first send is done: by ending it instead of by sending the message. If
nobody ends it, the broker asks, and the table of stubs answers:

    the row is there, unsent     COMMIT, by whoever claims it; it is a send like any other
    the row is there, sent       ROLLBACK: the message is stored, the half is left over; but COMMIT
                                 if no consumer group is waited for: nobody would notice that a
                                 broker lost what it had acknowledged, so rather twice
    the row is voided            ROLLBACK
    there is no row              a tombstone takes its id, then ROLLBACK
    nobody can tell yet          nothing is said, the broker asks again

The tombstone is what makes the ROLLBACK safe: a transaction that is slower than the check-back
cannot insert its stub any more, so its business is rolled back as well.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

from reliable_mq.database.row_values import StubStatus
from reliable_mq.message import Decision
from reliable_mq.transitions import after

TOMBSTONE_NOTE = "a check-back came before its transaction committed, so it never will"
TOMBSTONE_CONTENT = b""
"""No message has an empty body, so no stub has: that tells a tombstone from a voided stub."""
_APPLICATION_LENGTH_MAX = 60


class HalfState(Enum):
    """Where a half stands for the process that sent it."""

    PREPARED = "prepared"  # the broker has it, its transaction goes on
    COMMITTING = "committing"  # its stub was read back from the table
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    LEFT = "left"  # to a check-back


class HalfEvent(Enum):
    """What can happen to a half in the process that sent it."""

    ROLL_BACK = "roll back"  # its transaction ended, and nobody had asked for a commit
    SEND = "send"  # the relay sends its stub
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"  # refused, or no answer: it may or may not have ended
    FORGET = "forget"  # it is too old, its stub belongs to others


_PREPARED, _COMMITTING, _COMMITTED, _ROLLED_BACK, _LEFT = HalfState
HALF_TRANSITIONS: Mapping[tuple[HalfState, HalfEvent], HalfState] = {
    (_PREPARED, HalfEvent.ROLL_BACK): _ROLLED_BACK,
    (_PREPARED, HalfEvent.SEND): _COMMITTING,
    (_PREPARED, HalfEvent.FORGET): _LEFT,
    (_COMMITTING, HalfEvent.ACKNOWLEDGED): _COMMITTED,
    (_COMMITTING, HalfEvent.FAILED): _LEFT,
}


def next_half_state(state: HalfState, event: HalfEvent) -> HalfState:
    """Return the state after `event`.

    Raises:
        UsageError: when the event is illegal in this state; nothing has changed then.
    """
    return after(HALF_TRANSITIONS, state, event, f"a half that is {state.value}")


class StubLookup(Enum):
    """What the table of stubs says of a half that a broker asks for."""

    ENTOMBED = "no stub, and a tombstone has its id now"
    VOIDED = "its stub is voided, or a tombstone"
    STORED = "its stub was sent by other means"
    UNWATCHED = "its stub was sent, and nobody waits for its consumers"
    UNSENT = "its stub is committed and was never sent"
    IN_HAND = "its stub is committed, somebody else is sending it, or a person decides"
    BEHIND = "its stub is committed, an earlier one of its key must go first"
    UNDECIDED = "its transaction goes on"


ANSWERS: Mapping[StubLookup, Decision] = {
    StubLookup.ENTOMBED: Decision.ROLLBACK,
    StubLookup.VOIDED: Decision.ROLLBACK,
    StubLookup.STORED: Decision.ROLLBACK,
    StubLookup.UNWATCHED: Decision.COMMIT,
    StubLookup.UNSENT: Decision.COMMIT,
    StubLookup.IN_HAND: Decision.UNKNOWN,
    StubLookup.BEHIND: Decision.UNKNOWN,
    StubLookup.UNDECIDED: Decision.UNKNOWN,
}


class HalfView(msgspec.Struct, frozen=True):
    """What a committed stub's row says, as far as a check-back asks.

    `is_watched`: it waits for consumer groups. `is_behind`: an earlier stub of its ordering key
    must go first. `count`: its sends so far.
    """

    status: StubStatus
    is_stored: bool
    is_watched: bool
    is_behind: bool
    count: int


def finding_of(view: HalfView) -> StubLookup:
    """Return what a committed row means, before anybody claims it."""
    if view.status is StubStatus.VOIDED:
        return StubLookup.VOIDED
    if view.is_stored or view.status is StubStatus.CONFIRMED:
        return StubLookup.STORED if view.is_watched else StubLookup.UNWATCHED
    return StubLookup.BEHIND if view.is_behind else StubLookup.UNSENT


def half_group(application: str, identity: str) -> str:
    """Return the producer group that answers for the halves of an application in a database.

    Only processes that use this very database are in it: what another one's table does not hold
    must never be taken for rolled back.
    """
    return f"{application[:_APPLICATION_LENGTH_MAX]}_half_{identity}"
