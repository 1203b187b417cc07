"""A circuit breaker, as a table. Pure: the caller passes the time and reports results.

    CLOSED    --failure--> OPEN        --time passes--> HALF_OPEN
    HALF_OPEN --success--> CLOSED      --failure------> OPEN, for longer

While it is open, no caller uses the failing service. After a wait, one caller tries it.
"""

from collections.abc import Mapping
from enum import Enum

from tenacity import RetryCallState, Retrying, wait_exponential, wait_random
from tenacity.wait import wait_base

from reliable_mq.errors import InvariantBroken


class Circuit(Enum):
    """Whether calls may pass."""

    CLOSED = "closed"  # all pass
    OPEN = "open"  # none passes
    HALF_OPEN = "half open"  # one call tries; the others wait for its result


class CircuitEvent(Enum):
    """The events that change the circuit."""

    SUCCESS = "success"
    FAILURE = "failure"
    TRY = "try"


TRANSITIONS: Mapping[tuple[Circuit, CircuitEvent], Circuit] = {
    (Circuit.CLOSED, CircuitEvent.SUCCESS): Circuit.CLOSED,
    (Circuit.CLOSED, CircuitEvent.FAILURE): Circuit.OPEN,
    (Circuit.OPEN, CircuitEvent.TRY): Circuit.HALF_OPEN,
    (Circuit.OPEN, CircuitEvent.FAILURE): Circuit.OPEN,  # sent before the circuit opened
    (Circuit.OPEN, CircuitEvent.SUCCESS): Circuit.CLOSED,
    (Circuit.HALF_OPEN, CircuitEvent.SUCCESS): Circuit.CLOSED,
    (Circuit.HALF_OPEN, CircuitEvent.FAILURE): Circuit.OPEN,
}

DEFAULT_WAIT = wait_exponential(multiplier=0.5, max=15.0) + wait_random(0.0, 0.25)


class CircuitBreaker:
    """Decides whether a call may pass at `now` (seconds on any clock that is never set back).

    Invariant: the state `open` has an end time, the other states have none.

    Args:
        wait: how long the circuit stays open after the n-th consecutive failure, one of tenacity's
            waits.
    """

    def __init__(self, wait: wait_base = DEFAULT_WAIT) -> None:
        self._wait = wait
        self._failures = 0
        self._open_until: float | None = None
        self.state = Circuit.CLOSED

    def allows(self, now: float) -> bool:
        """Return whether a call may be made; after an open circuit's wait, exactly one may."""
        if self.state is Circuit.OPEN and self._open_until is not None and now >= self._open_until:
            self._move(CircuitEvent.TRY)
            self._open_until = None
            return True
        return self.state is Circuit.CLOSED

    def succeeded(self) -> None:
        """Report that a call got an answer."""
        self._failures = 0
        self._open_until = None
        self._move(CircuitEvent.SUCCESS)

    def record_failure(self, now: float) -> None:
        """Report that a call got no answer."""
        was_open = self.state is Circuit.OPEN
        self._move(CircuitEvent.FAILURE)
        if was_open:  # the calls of one outage count once
            return
        self._failures += 1
        self._open_until = now + self._seconds()

    def _move(self, event: CircuitEvent) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _seconds(self) -> float:
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = self._failures
        return self._wait(state)

    def invariants(self) -> None:
        """Check the invariant of the class."""
        if (self.state is Circuit.OPEN) != (self._open_until is not None):
            raise InvariantBroken("an open circuit has an end time, no other state has one")
