"""How long a push consumer keeps a message without asking. Pure.

A push consumer names no invisible time. So its messages are handed out for a minute, and that time
is renewed while the consumer is connected, longer each time.
Source: Apache RocketMQ `DefaultReceiptHandleManager`, `RenewStrategyPolicy`.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from reliable_mq.errors import InvariantBroken
from reliable_mq.gateway.handles import read_handle

if TYPE_CHECKING:
    from reliable_mq.gateway.sessions import Session

FIRST_MS = 60_000
"""The invisible time of a message that is renewed."""
AHEAD_MS = 10_000
"""A message is renewed when it would appear again in this time."""
LONGEST_MS = 3 * 3600 * 1000
"""After this time a message is renewed no more."""
FAILURES_MAX = 3
AGAIN_MS = 3_000
"""How long after a failed renewal the next one follows."""
SCAN_SECONDS = 5.0
RENEW_SECONDS = 0.25
RENEWING_MAX = 1_000
"""The most renewals that are under way."""
LET_GO_MS = 1_000
"""The invisible time of a message whose consumer has left."""
HELD_MAX = 20_000
"""A client that has so many messages that are renewed gets no more."""

_STEPS_MS = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)

Key = tuple[str, str, str]
"""The group, the message id, and the handle that the client knows."""


class Held:
    """One message that a push consumer has.

    Raises:
        RpcRefused: when its handle cannot be read.
    """

    __slots__ = (
        *("asking", "attempts", "due_ms", "failures", "handle", "key", "renewals", "session"),
        *("since_ms", "topic"),
    )

    def __init__(
        self, session: "Session", key: Key, topic: str, attempts: int, now_ms: int
    ) -> None:
        self.session = session
        self.key = key
        self.topic = topic
        self.handle = key[2]
        """The newest handle."""
        self.attempts = attempts
        self.since_ms = now_ms
        self.renewals = 0
        self.failures = 0
        self.asking: Awaitable[None] | None = None
        """Ends with the question to the broker that is under way: there is one at a time."""
        self.due_ms = read_handle(self.handle).popped.revive_ms - AHEAD_MS
        """When it is renewed, or given up."""

    @property
    def is_kept(self) -> bool:
        """Whether the client still has it."""
        return self.session.held.get(self.key) is self

    def is_over(self, now_ms: int) -> bool:
        """Whether it was kept long enough."""
        return now_ms - self.since_ms >= LONGEST_MS

    @property
    def next_ms(self) -> int:
        """The invisible time of the next renewal."""
        return _STEPS_MS[min(self.renewals, len(_STEPS_MS) - 1)]

    def renewed(self, handle: str) -> None:
        """Note that it has a new handle."""
        self.due_ms = read_handle(handle).popped.revive_ms - AHEAD_MS
        self.handle = handle
        self.renewals += 1
        self.failures = 0

    def failed(self, now_ms: int) -> None:
        """Note that it has none."""
        self.failures += 1
        self.due_ms = now_ms + AGAIN_MS


class Due:
    """Messages by the second in which they are due. Invariant: no second is empty."""

    def __init__(self) -> None:
        self._by_second: dict[int, dict[Held, None]] = {}

    def put(self, held: Held) -> None:
        """Note when a message is due."""
        self._by_second.setdefault(held.due_ms // 1000, {})[held] = None

    def remove(self, held: Held) -> None:
        """Forget a message; it may be forgotten already."""
        second = held.due_ms // 1000
        found = self._by_second.get(second)
        if found is not None:
            found.pop(held, None)
            if not found:
                del self._by_second[second]

    def take(self, now_ms: int, most: int) -> list[Held]:
        """Remove and return messages that are due, the first first."""
        taken: list[Held] = []
        while self._by_second and len(taken) < most:
            second = min(self._by_second)
            if second * 1000 > now_ms:
                break
            found = self._by_second[second]
            while found and len(taken) < most:
                taken.append(found.popitem()[0])
            if not found:
                del self._by_second[second]
        return taken

    def invariants(self) -> None:
        """Check that no second is empty.

        Raises:
            InvariantBroken: when one is.
        """
        if not all(self._by_second.values()):
            raise InvariantBroken("a second without messages is kept")
