"""How many handler calls run, and how many messages each gets. Pure: it hands on numbers.

What is handed over one by one costs a hand-over each: the round trip of a claim, a wake-up of the
handler's thread and one of the loop, together more than a small effect. So while calls are short,
messages that come while two calls run wait a moment for one of these hands to be free, which takes
several, to be handled one after another; when none is free by then, all hands are used. A call that
takes long would keep the others of its series waiting: then every message has a hand of its own.
"""

from reliable_mq.client.consuming.subscription import Subscription

SHORT_SECONDS = 0.05
"""A message that takes longer, as calls went lately, is not handed over with others."""
PATIENCE_SECONDS = 0.01
"""How long messages wait for a hand that is at work."""
EAGER = 2
"""So many hands are used at once."""
_WEIGHT = 0.1
"""Of the last call, in what is known of all."""


class HandlerPool:
    """The hands of one consumer.

    Args:
        subscription: says concurrency, batch and series.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._concurrency = subscription.concurrency
        self._batch = subscription.batch
        self._series = subscription.series
        self._seconds = 1.0  # of a message: the mean, the last calls first; nothing is known yet

    def note(self, seconds: float, messages: int) -> None:
        """Take in that a call with so many messages took so long."""
        self._seconds += (seconds / messages - self._seconds) * _WEIGHT

    @property
    def gives_series(self) -> bool:
        """Whether a call may get several messages now."""
        return self._series > 1 and self._seconds <= SHORT_SECONDS

    def wanted(self, running: int, *, is_late: bool) -> int:
        """Return how many calls may run: at least `running`, all when messages waited long."""
        if is_late or not self.gives_series:
            return self._concurrency
        return min(self._concurrency, max(EAGER, running))

    def share(self, ready: int, free: int) -> int:
        """Return how many messages one of the `free` hands gets, when so many are ready."""
        if not self.gives_series:
            return self._batch
        return max(1, min(self._series, -(-ready // free)))
