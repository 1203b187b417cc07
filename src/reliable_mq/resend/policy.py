"""When a stub is sent again, and when a person is told. Pure; a literal table of events.

A policy is a ladder of waits, as the broker's own delay levels are: the wait after the n-th send
is the n-th step, and the last step repeats. A later `count` never waits less (R1).
"""

from enum import Enum

import msgspec

from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.limits import RETRY_ATTEMPTS_MAX
from reliable_mq.outbox.delay import DELAY_LEVEL_SECONDS

REST_MAX = 600.0
"""Longest rest of a stub that a backlog has not reached, seconds."""


class SendState(Enum):
    """How far the sends of a stub have come."""

    WAITING = "waiting"  # for its next send, at resend_time
    USED_UP = "used up"  # count == max: a person is to be told, at resend_time
    ESCALATED = "escalated"  # a person was told; resend_time is null


class SendEvent(Enum):
    """What moves a stub from one send state to another."""

    SENT = "sent"
    LAST_SENT = "last sent"
    GIVEN_UP = "given up"
    TOLD = "told"
    RETRIED = "retried"


TRANSITIONS = {
    (SendState.WAITING, SendEvent.SENT): SendState.WAITING,
    (SendState.WAITING, SendEvent.LAST_SENT): SendState.USED_UP,
    (SendState.WAITING, SendEvent.GIVEN_UP): SendState.USED_UP,
    (SendState.USED_UP, SendEvent.GIVEN_UP): SendState.USED_UP,
    (SendState.USED_UP, SendEvent.TOLD): SendState.ESCALATED,
    (SendState.USED_UP, SendEvent.RETRIED): SendState.WAITING,
    (SendState.ESCALATED, SendEvent.RETRIED): SendState.WAITING,
    (SendState.WAITING, SendEvent.RETRIED): SendState.WAITING,
}


def next_send_state(state: SendState, event: SendEvent) -> SendState:
    """Return the send state after `event`.

    Raises:
        UsageError: when the event is illegal in this state; nothing has changed then.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise UsageError(f"sends that are {state.value} cannot take the event {event.value!r}")
    return after


class ResendPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When the next send of a stub is due. Times are seconds.

    Attributes:
        waits: the ladder; `waits[n - 1]` follows the n-th send, the last one repeats. The default
            is the broker's delay levels from 10 s on.
        count_max: sends after which a person is told instead.
        backlog_wait: how long a stub rests that a backlog has not reached yet; an old one rests
            longer, see `rest_of`.
        told_after: age at which a person is told of stubs that a consumer group does not reach.

    Raises:
        ConfigurationError: when a wait or the maximum is not positive, or the ladder descends.
    """

    waits: tuple[float, ...] = DELAY_LEVEL_SECONDS[2:]
    count_max: int = RETRY_ATTEMPTS_MAX
    backlog_wait: float = 5.0
    told_after: float = 86_400.0

    def __post_init__(self) -> None:
        if not self.waits or min(self.waits) <= 0 or min(self.backlog_wait, self.told_after) <= 0:
            raise ConfigurationError("the waits between sends must be positive seconds")
        if list(self.waits) != sorted(self.waits):
            raise ConfigurationError("the waits between sends must not become shorter")
        if self.count_max < 1:
            raise ConfigurationError("the maximum of sends must be at least 1")

    def next_time(self, count: int, now: float, deliver_time: float | None = None) -> float:
        """Return when the send after the `count`-th is due.

        A delayed message is not missed before it could be delivered, so its ladder starts there.
        """
        if count < 1:
            raise UsageError("the wait follows a send: count is at least 1")
        start = now if deliver_time is None else max(now, deliver_time)
        return start + self.waits[min(count, len(self.waits)) - 1]

    def rest_of(self, age: float) -> float:
        """Return how long a stub of this age rests that a backlog has not reached.

        `backlog_wait` doubled as long as it is within a tenth of the age and ten minutes: looking
        at a long backlog must not become the work, and what is old is not missed to the second.
        """
        rest = self.backlog_wait
        while rest * 2 <= min(age / 10, REST_MAX):
            rest *= 2
        return rest

    def event_of(self, count: int) -> SendEvent:
        """Return the event that the `count`-th send is."""
        return SendEvent.LAST_SENT if count >= self.count_max else SendEvent.SENT
