"""How long a push consumer keeps a message without asking. Pure.

A push consumer names no invisible time. So its messages are handed out for a minute, and that time
is renewed while the consumer is connected, longer each time.
Source: Apache RocketMQ `DefaultReceiptHandleManager`, `RenewStrategyPolicy`.
"""

from reliable_mq.gateway.handles import read_handle

FIRST_MS = 60_000
"""The invisible time of a message that is renewed."""
AHEAD_MS = 10_000
"""A message is renewed when it would appear again in this time."""
LONGEST_MS = 3 * 3600 * 1000
"""After this time a message is renewed no more."""
FAILURES_MAX = 3
SCAN_SECONDS = 5.0
LET_GO_MS = 1_000
"""The invisible time of a message whose consumer has left."""
HELD_MAX = 20_000
"""The most messages of one client that are renewed."""

_STEPS_MS = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)


class Held:
    """One message that a push consumer has."""

    __slots__ = ("attempts", "failures", "handle", "is_asking", "renewals", "since_ms", "topic")

    def __init__(self, topic: str, handle: str, attempts: int, now_ms: int) -> None:
        self.topic = topic
        self.handle = handle
        """The newest handle."""
        self.attempts = attempts
        self.since_ms = now_ms
        self.renewals = 0
        self.failures = 0
        self.is_asking = False
        """Whether a renewal is under way."""

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time to renew it, or to give it up."""
        return not self.is_asking and read_handle(self.handle).visible_at - now_ms <= AHEAD_MS

    def is_over(self, now_ms: int) -> bool:
        """Whether it was kept long enough."""
        return now_ms - self.since_ms >= LONGEST_MS

    @property
    def next_ms(self) -> int:
        """The invisible time of the next renewal."""
        return _STEPS_MS[min(self.renewals, len(_STEPS_MS) - 1)]

    def renewed(self, handle: str) -> None:
        """Note that it has a new handle."""
        self.handle = handle
        self.renewals += 1
        self.failures = 0
