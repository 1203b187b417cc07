"""A clock that stands still until somebody moves it."""

import time

from sqlalchemy import Connection

from reliable_mq.watched_time import ClockReading, WatchedTime, first_look


class ManualClock:
    """Seconds since the epoch, from now on in whole seconds; stands in for a database's clock.

    Invariant: it never goes back.
    """

    def __init__(self, start: float | None = None) -> None:
        self._now = float(int(time.time())) if start is None else start

    def now(self) -> float:
        """Return the time."""
        return self._now

    measured_now = now
    """The database is this clock: there is nothing to measure."""

    def now_on(self, connection: Connection) -> float:  # noqa: ARG002
        """Return the time; nobody is asked."""
        return self._now

    def reading(self) -> ClockReading:
        """Return a look at this clock, which is watched all the time."""
        return ClockReading(self._now, self._now, "manual")

    def watched(self) -> WatchedTime:
        """Return that this clock never jumped."""
        return first_look(self.reading(), None, unwatched_max=0.0)

    @property
    def epoch_ms(self) -> int:
        """The time in milliseconds."""
        return round(self._now * 1000)

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            ValueError: when it would go back.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back by {-seconds} s")
        self._now += seconds
