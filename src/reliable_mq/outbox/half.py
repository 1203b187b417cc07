"""The half messages of the outbox: their states in the sending process, and the answers to a
broker's check-back. Pure.

A stub whose message went out as a half is a normal stub: nothing in its row says so. Only its first
send differs: it ends the half instead of sending the message. If the half is not ended, the broker
checks back, and the table of stubs answers:

    the row exists, unsent       COMMIT, after a claim of the stub; it counts as a normal send
    the row exists, sent         ROLLBACK: the message is stored, the half is left over. But COMMIT
                                 if the stub waits for no consumer group: then nothing would notice
                                 that a broker lost an acknowledged message; a duplicate is better
    the row is voided            ROLLBACK
    there is no row              a tombstone takes its id, then ROLLBACK
    not known yet                no answer; the broker asks again

The tombstone makes the ROLLBACK safe: a transaction that is slower than the check-back can no
longer insert its stub, so its business is rolled back, too.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

from reliable_mq.database.row_values import StubStatus
from reliable_mq.message import Decision
from reliable_mq.transitions import after

TOMBSTONE_NOTE = "a check-back came before its transaction committed, so it never will"
TOMBSTONE_CONTENT = b""
"""No message has an empty body, so no stub has. This tells a tombstone from a voided stub."""
_APPLICATION_LENGTH_MAX = 60


class HalfState(Enum):
    """The state of a half in the process that sent it."""

    PREPARED = "prepared"  # the broker has stored it, its transaction is open
    COMMITTING = "committing"  # its stub was read back from the table
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    LEFT = "left"  # to a check-back


class HalfEvent(Enum):
    """What can happen to a half in the process that sent it."""

    ROLL_BACK = "roll back"  # its transaction ended without a commit
    SEND = "send"  # the relay sends its stub
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"  # refused or unanswered: the half may or may not have ended
    FORGET = "forget"  # it is too old; another process may own its stub


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
        UsageError: the event is illegal in this state; nothing has changed.
    """
    return after(HALF_TRANSITIONS, state, event, f"a half that is {state.value}")


class StubLookup(Enum):
    """What the table of stubs says about a half that a broker checks back on."""

    ENTOMBED = "no stub; a tombstone has taken its id now"
    VOIDED = "its stub is voided, or is a tombstone"
    STORED = "its stub was sent in another way"
    UNWATCHED = "its stub was sent, and waits for no consumer group"
    UNSENT = "its stub is committed and was never sent"
    IN_HAND = "its stub is committed; another owner is sending it, or a person decides"
    BEHIND = "its stub is committed; an earlier one of its key must go first"
    UNDECIDED = "its transaction is still open"


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
    """The columns of a committed stub's row that a check-back needs.

    `is_watched`: the stub waits for consumer groups. `is_behind`: an earlier stub of its ordering
    key must go first. `count`: its sends so far.
    """

    status: StubStatus
    is_stored: bool
    is_watched: bool
    is_behind: bool
    count: int


def finding_of(view: HalfView) -> StubLookup:
    """Return what a committed row means, before a claim."""
    if view.status is StubStatus.VOIDED:
        return StubLookup.VOIDED
    if view.is_stored or view.status is StubStatus.CONFIRMED:
        return StubLookup.STORED if view.is_watched else StubLookup.UNWATCHED
    return StubLookup.BEHIND if view.is_behind else StubLookup.UNSENT


def half_group(application: str, identity: str) -> str:
    """Return the producer group that answers for the halves of an application in a database.

    Only processes that use this very database join it. Otherwise a stub that is missing in another
    database's table would count as rolled back.
    """
    return f"{application[:_APPLICATION_LENGTH_MAX]}_half_{identity}"
