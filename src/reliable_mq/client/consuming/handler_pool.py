"""How many handler calls run at once, and how many messages each of them gets.

Receives how long calls took. It must not know tasks and threads: `asyncio_handler_pool` has them.
"""

from reliable_mq.client.consuming.subscription import Subscription

SHORT_SECONDS = 0.05
"""If recent calls took longer per message, there is no series."""
SERIES_SECONDS = 0.4
"""A series is so short that its last message begins about within this time."""
EAGER = 2
"""Number of worker tasks that are used without waiting."""
_WEIGHT = 0.1
"""Weight of the last call in the mean."""


class HandlerPool:
    """Decides how many handler calls run, and how many messages each gets. Pure.

    Handing over a message has a fixed cost: the round trip of a claim, a wake-up of the handler's
    thread and one of the loop. Together that costs more than a short handler. So while calls are
    short, only two run, and new messages wait a moment until one of these is free. That one takes
    several of them (a series) and handles them one after another. If none becomes free, all worker
    tasks are used. A long call would delay the rest of its series: then each message gets a worker
    task of its own.

    Args:
        subscription: has the concurrency, batch and series.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._concurrency = subscription.concurrency
        self._batch = subscription.batch
        self._series = subscription.series
        self._seconds = 1.0  # mean time of a message, recent calls first; long at the start

    def note_call(self, seconds: float, messages: int) -> None:
        """Note the time of a call and its number of messages."""
        self._seconds += (seconds / messages - self._seconds) * _WEIGHT

    @property
    def mean_seconds(self) -> float:
        """The mean time of a message, recent calls first; a second at the start."""
        return self._seconds

    @property
    def may_take_series(self) -> bool:
        """Whether a call may get a series of messages now."""
        return self._series > 1 and self._seconds <= SHORT_SECONDS

    def wanted(self, running: int, *, is_late: bool) -> int:
        """Return how many calls may run: at least `running`; all if messages waited too long."""
        if is_late or not self.may_take_series:
            return self._concurrency
        return min(self._concurrency, max(EAGER, running))

    def share(self, ready: int, free: int) -> int:
        """Return how many of `ready` messages one of the `free` worker tasks gets."""
        if not self.may_take_series:
            return self._batch
        return max(1, min(self._series_max, -(-ready // free)))

    @property
    def _series_max(self) -> int:
        if self._series * self._seconds <= SERIES_SECONDS:
            return self._series
        return int(SERIES_SECONDS / self._seconds)
