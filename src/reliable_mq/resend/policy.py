"""When a stub is sent again, and when a person is told. Pure.

A policy is a ladder of waits, as the broker's own delay levels are: the wait after the n-th send
is the n-th step, and the last step repeats. A later `count` never waits less (R1).
"""

import msgspec

from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.limits import DELAY_LEVEL_SECONDS, RETRY_ATTEMPTS_MAX

REST_MAX = 600.0
"""Longest rest of a stub that a backlog has not reached, seconds."""


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
