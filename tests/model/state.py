"""One message's whole world at one moment: values only.

There is one message, one consumer group that must have it, two consumers, a producer with its relay
and a resend scheduler. Time is not told: that a lease passes, or a stub becomes due, is an event
that may happen at any moment at which it could.

Whoever owns something is named by a number: 0 and 1 are the claims that the two consumers hold now,
RELAY and SCHEDULER are theirs, GONE is a claim whose holder has died or goes on without it.
"""

from enum import IntEnum
from typing import NamedTuple

from reliable_mq.database.row_values import StubStatus
from reliable_mq.idempotency.claim import RowState

CONSUMERS = (0, 1)
NOBODY, GONE, RELAY, SCHEDULER = -1, 9, 10, 11


class Pc(IntEnum):
    """Where a process is."""

    IDLE = 0
    CLAIM = 1  # a consumer has a delivery in hand
    RECEIVE = 2  # is about to commit a RECEIVED row
    BEGIN = 3  # is about to insert a CONSUMED row into the handler's transaction
    RUN = 4  # the handler runs under a RECEIVED row
    IN_TX = 5  # row and effect are written, nothing is committed
    FAILING = 6  # rolled back; the failure is about to be recorded
    GIVE_UP = 7  # attempts are used up; the dead letter is about to be recorded
    BURY = 8  # recorded; the dead letter is about to be stored
    END = 9  # Redis is to be told, and the delivery to be acknowledged
    AGAIN = 10  # Redis is to be told, and the delivery comes again
    HANDED = 11  # the relay was handed a stub
    SENDING = 12  # has looked, and is about to send
    RECORD = 13  # has sent, and is about to write what came of it
    LOOK = 14  # the scheduler has claimed a stub that was sent
    ASK = 18  # it has read the consume log, and is about to ask how far the group has come
    REST = 15  # it has decided that the stub waits
    CONFIRM = 16  # it has decided that the stub is consumed
    ESCALATE = 17  # it has claimed a stub that was sent often enough
    OVER = 19  # the producer's process has ended


class Key(NamedTuple):
    """What Redis holds. `attempt` 0 and not done: nothing."""

    is_done: bool = False
    attempt: int = 0
    owner: int = NOBODY
    is_alive: bool = False


class Log(NamedTuple):
    """The row of the consume log, as committed."""

    row: RowState = RowState.ABSENT
    attempt: int = 0
    owner: int = NOBODY


class Stub(NamedTuple):
    """The row of the stub, as committed. `position`: which copy at the broker it names."""

    status: StubStatus = StubStatus.UNCONFIRMED
    sends: int = 0
    position: int = -1
    owner: int = NOBODY
    is_leased: bool = False
    given_up: bool = False
    is_told: bool = False


class Copy(NamedTuple):
    """A copy of the message at the broker. `holders`: which consumers have it in hand, as bits."""

    is_resent: bool
    holders: int = 0
    is_finished: bool = False


class Consumer(NamedTuple):
    """A consumer. `fate`: what Redis is to be told, empty: nothing.

    `has_receipt`: its RECEIVED row is committed, and known to whoever renews leases.
    """

    pc: Pc = Pc.IDLE
    copy: int = -1
    attempt: int = 1
    has_receipt: bool = False
    fate: str = ""


class Sender(NamedTuple):
    """The relay or the scheduler.

    `position`: what its send came to, -1: it failed. `seen`: what it read of the consume log.
    """

    pc: Pc = Pc.IDLE
    sends: int = 0
    position: int = -1
    seen: RowState = RowState.ABSENT


def mirrored(state: "State") -> "State":
    """Return the same state with the two consumers' names exchanged; both stand for one."""
    first, second = state.consumers
    key, log = state.key, state.log
    mirror = {0: 1, 1: 0}
    other = (
        (second, first),
        key._replace(owner=mirror.get(key.owner, key.owner)),
        log._replace(owner=mirror.get(log.owner, log.owner)),
        tuple(
            copy._replace(holders=(copy.holders >> 1) | (copy.holders & 1) << 1)
            for copy in state.copies
        ),
    )
    if (other[0], other[1], other[2].owner, other[3]) < (
        state.consumers,
        key,
        log.owner,
        state.copies,
    ):
        return state._replace(consumers=other[0], key=other[1], log=other[2], copies=other[3])
    return state


class State(NamedTuple):
    """Everything. `misfortunes`: how much may still go wrong, of whatever kind."""

    misfortunes: int
    stub: Stub | None = None
    log: Log = Log()
    key: Key = Key()
    effects: int = 0
    letters: int = 0
    copies: tuple[Copy, ...] = ()
    consumers: tuple[Consumer, Consumer] = (Consumer(), Consumer())
    relay: Sender = Sender()
    scheduler: Sender = Sender()
