"""When a stub is sent again, and when a person is told. Pure, but for waits that draw lots.

How long to wait after the n-th send is any of tenacity's waits, alone or composed: `wait_fixed(5)`,
`wait_exponential(max=3600) + wait_random(0, 10)`, `wait_chain(…)`. The usual one is a ladder, as
the broker's own delay levels are: the wait after the n-th send is the n-th step, and the last step
repeats. Every wait is positive and finite, and a ladder never descends (R1).
"""

import math
from collections.abc import Callable

import msgspec
from tenacity import RetryCallState, Retrying
from tenacity.wait import wait_chain, wait_fixed

from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.limits import DELAY_LEVEL_SECONDS, RETRY_ATTEMPTS_MAX

REST_MAX = 600.0
"""Longest rest of a stub that a backlog has not reached, seconds."""
WAIT_MIN, WAIT_MAX = 0.1, 30 * 86_400.0
"""Shortest and longest wait between two sends, seconds; a draw outside of it is moved to it."""

Wait = Callable[[RetryCallState], float]
"""One of tenacity's waits. Of its argument only `attempt_number` is set: the count of sends."""

_NOBODY = Retrying()  # a call's state asks whose it is


def ladder(*seconds: float) -> Wait:
    """Return a wait of `seconds[n - 1]` after the n-th send; the last step repeats.

    Raises:
        ConfigurationError: when there is no step, one is not positive, or the ladder descends.
    """
    if not seconds or not all(0 < each < math.inf for each in seconds):
        raise ConfigurationError("the waits between sends must be positive seconds")
    if list(seconds) != sorted(seconds):
        raise ConfigurationError("the waits between sends must not become shorter")
    return wait_chain(*map(wait_fixed, seconds))


class ResendPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When the next send of a stub is due. Times are seconds.

    Attributes:
        wait: how long after the n-th send the next one is due; one of tenacity's waits. The
            default is a ladder of the broker's delay levels from 10 s on.
        count_max: sends after which a person is told instead.
        backlog_wait: how long a stub rests that a backlog has not reached yet; an old one rests
            longer, see `rest_of`.
        told_after: age at which a person is told of stubs that a consumer group does not reach.

    Raises:
        ConfigurationError: when a wait or the maximum is not positive, or a wait cannot be told by
            the count of sends alone.
    """

    wait: Wait = ladder(*DELAY_LEVEL_SECONDS[2:])
    count_max: int = RETRY_ATTEMPTS_MAX
    backlog_wait: float = 5.0
    told_after: float = 86_400.0

    def __post_init__(self) -> None:
        if not (0 < self.backlog_wait < math.inf and 0 < self.told_after < math.inf):
            raise ConfigurationError("backlog_wait and told_after must be positive seconds")
        if self.count_max < 1:
            raise ConfigurationError("the maximum of sends must be at least 1")
        for count in range(1, self.count_max + 1):
            try:
                seconds = float(self.wait(_after(count)))
            except Exception as error:
                raise ConfigurationError(
                    f"the wait after send {count} cannot be told: {error or type(error).__name__}; "
                    "it knows the number of sends, not what came of them"
                ) from error
            if not 0 < seconds <= WAIT_MAX:
                raise ConfigurationError(
                    f"the wait after send {count} is {seconds:g} s; it must be positive and at most"
                    f" {WAIT_MAX:g} s"
                )

    def wait_after(self, count: int) -> float:
        """Return the wait after the `count`-th send.

        Raises:
            UsageError: when there was no send.
        """
        if count < 1:
            raise UsageError("the wait follows a send: count is at least 1")
        # What draws lots may draw a nought; a stub must neither spin nor be forgotten.
        return min(max(WAIT_MIN, float(self.wait(_after(count)))), WAIT_MAX)

    def next_time(self, count: int, now: float, deliver_time: float | None = None) -> float:
        """Return when the send after the `count`-th is due.

        A delayed message is not missed before it could be delivered, so its waits start there.
        """
        start = now if deliver_time is None else max(now, deliver_time)
        return start + self.wait_after(count)

    def rest_of(self, age: float) -> float:
        """Return how long a stub of this age rests that a backlog has not reached.

        `backlog_wait` doubled as long as it is within a tenth of the age and ten minutes: looking
        at a long backlog must not become the work, and what is old is not missed to the second.
        """
        rest = self.backlog_wait
        while rest * 2 <= min(age / 10, REST_MAX):
            rest *= 2
        return rest

    def horizon(self) -> float:
        """Return how long sends may go on until a person is told: all waits together."""
        return sum(self.wait_after(count) for count in range(1, self.count_max + 1))


def _after(count: int) -> RetryCallState:
    state = RetryCallState(_NOBODY, None, (), {})
    state.attempt_number = count
    return state
