"""When a stub is sent again, and when a person is informed. Pure, except for random waits.

The wait after the n-th send is any wait of tenacity, alone or combined: `wait_fixed(5)`,
`wait_exponential(max=3600) + wait_random(0, 10)`, `wait_chain(…)`. The default is a ladder, like
the broker's delay levels: the wait after the n-th send is the n-th step, and the last step
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
"""Longest rest of a stub that a group with a backlog has not reached, in seconds."""
WAIT_MIN, WAIT_MAX = 0.1, 30 * 86_400.0
"""Shortest and longest wait between two sends, in seconds. Other waits are moved to these."""

Wait = Callable[[RetryCallState], float]
"""A wait of tenacity. Its argument has only `attempt_number` set: the count of sends."""

_NOBODY = Retrying()  # tenacity's call state needs a `Retrying`


def ladder(*seconds: float) -> Wait:
    """Return a wait of `seconds[n - 1]` after the n-th send; the last step repeats.

    Raises:
        ConfigurationError: there is no step, a step is not positive, or the ladder descends.
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
        count_max: the number of sends; after them a person is informed instead. Default 16.
        backlog_wait: how long a stub rests that a group with a backlog has not reached yet.
            Default 5. An old stub rests longer, see `rest_of`.
        told_after: the age at which a person is informed of stubs that a consumer group does not
            reach. Default 86,400 (a day).

    Raises:
        ConfigurationError: a wait or the maximum is not positive, or a wait needs more than the
            count of sends.
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
                    f"the wait after send {count} cannot be computed: "
                    f"{error or type(error).__name__}; the function gets only the number of sends"
                ) from error
            if not 0 < seconds <= WAIT_MAX:
                raise ConfigurationError(
                    f"the wait after send {count} is {seconds:g} s; it must be positive and at most"
                    f" {WAIT_MAX:g} s"
                )

    def wait_after(self, count: int) -> float:
        """Return the wait after the `count`-th send, in seconds.

        Raises:
            UsageError: `count` is less than 1.
        """
        if count < 1:
            raise UsageError("the wait follows a send: count is at least 1")
        # A random wait may be zero or too long; a stub must neither spin nor be forgotten.
        return min(max(WAIT_MIN, float(self.wait(_after(count)))), WAIT_MAX)

    def next_time(self, count: int, now: float, deliver_time: float | None = None) -> float:
        """Return when the send after the `count`-th is due.

        A delayed message is not missed before its deliver time, so its wait starts then.
        """
        start = now if deliver_time is None else max(now, deliver_time)
        return start + self.wait_after(count)

    def rest_of(self, age: float) -> float:
        """Return how long a stub of this age rests if a group with a backlog has not reached it.

        The rest is `backlog_wait`, doubled while it stays within a tenth of the age and within
        `REST_MAX`. A long backlog must not cost many looks, and an old stub can wait longer.
        """
        rest = self.backlog_wait
        while rest * 2 <= min(age / 10, REST_MAX):
            rest *= 2
        return rest

    def horizon(self) -> float:
        """Return how long all sends take until a person is informed: the sum of all waits."""
        return sum(self.wait_after(count) for count in range(1, self.count_max + 1))


def _after(count: int) -> RetryCallState:
    state = RetryCallState(_NOBODY, None, (), {})
    state.attempt_number = count
    return state
