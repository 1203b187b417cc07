"""The time for rows: the database's time, so that processes on many machines agree.

One process writes leases and due times, and another reads them. A machine whose clock is ahead
would take over running work; a machine whose clock is behind would wait for dead owners. So the
difference to the database's clock is measured at intervals, and added. No statement asks for it.
"""

import logging
import math
import time
from collections.abc import Callable

from sqlalchemy import Connection, Engine, text

from reliable_mq.database.sql_types import dialect_family
from reliable_mq.runtime.lease_clock import ticks_clock, ticks_run
from reliable_mq.telemetry import application_events
from reliable_mq.watched_time import ClockReading, WatchedTime, first_look

log = logging.getLogger(__name__)

TOLERATED_SECONDS = 0.5
"""A smaller difference is ignored: every lease tolerates it, and it is within the error."""
MEASURED_SECONDS = 60.0
"""Seconds that a measurement is valid."""


# The server's time in seconds since the epoch. MySQL's UNIX_TIMESTAMP depends on the session's time
# zone, in which an hour occurs twice in autumn; so the difference is computed in UTC.
_QUESTIONS = {
    "postgresql": text("SELECT extract(epoch FROM clock_timestamp())"),
    "mysql": text(
        "SELECT timestampdiff(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) / 1000000"
    ),
}


def measure(connection: Connection, local: Callable[[], float]) -> tuple[float, float]:
    """Return how far the database's clock is ahead of `local`, and the possible error; in seconds.

    The possible error is the time that the answer took. SQLite has no clock of its own.
    """
    question = _QUESTIONS.get(dialect_family(connection.dialect.name))
    if question is None:
        return 0.0, 0.0
    before = local()
    theirs = float(connection.execute(question).scalar_one())
    after = local()
    return theirs - (before + after) / 2, after - before


class DatabaseClock:
    """The database's time, in seconds since the epoch.

    Invariant: the value added to the local clock is 0, or more than `TOLERATED_SECONDS` either way.

    Args:
        engine: the database. An SQLite file has the clock of its only machine.
        local: this machine's clock.
        ticks: seconds that nobody sets, to know the age of a measurement; default: the machine's,
            see `ticks_clock`.
    """

    def __init__(
        self,
        engine: Engine,
        local: Callable[[], float] = time.time,
        ticks: Callable[[], float] | None = None,
    ) -> None:
        self._engine = engine
        self._local = local
        self._ticks = ticks or ticks_clock()
        self._ahead = self._found = 0.0  # the added difference, and the measured one
        self._measured_at = self._told_at = -math.inf  # by `ticks`
        self._known: WatchedTime | None = None
        #: `measured_now` calls it once a minute: how far the local clock is ahead, and the time
        self.on_measured: Callable[[float, float], None] | None = None

    def now(self) -> float:
        """Return the time by the last measurement; never waits."""
        return self._local() + self._ahead

    def now_on(self, connection: Connection) -> float:
        """Return the time. If the last measurement is a minute old, this connection measures first.

        For callers that have a connection, perhaps with a transaction. A second connection could
        wait for its locks, or for a free place in the pool. Raises what the database raises.
        """
        at = self._ticks()
        if at >= self._measured_at + MEASURED_SECONDS:
            self._take(measure(connection, self._local), at)
        return self.now()

    def measured_now(self) -> float:
        """Return the time. If the last measurement is a minute old, the database is asked first.

        Raises what the database raises.
        """
        if self.is_report_due:
            at = self._ticks()
            self._take(self._asked(), at)
            self.report_measured()
        return self.now()

    def reading(self) -> ClockReading:
        """Return the times of this clock and of a clock that nobody sets, at the same moment.

        A time from before a wait for the database would look like a clock that was set back.
        """
        return ClockReading(self.now(), self._ticks(), ticks_run())

    def watched(self) -> WatchedTime:
        """Return what this process knows of the clock since its first measurement."""
        reading, known = self.reading(), self._known
        self._known = (
            first_look(reading, None, unwatched_max=0.0)
            if known is None
            else known.looked(reading, unwatched_max=0.0)
        )
        return self._known

    @property
    def is_report_due(self) -> bool:
        """Whether the last call of `on_measured` is at least a minute ago."""
        return self._ticks() >= self._told_at + MEASURED_SECONDS

    def report_measured(self) -> None:
        """Pass the last measurement to `on_measured`; may wait for the database."""
        self._told_at = self._ticks()
        if self.on_measured is not None:
            self.on_measured(-self._found, self.now())

    def _asked(self) -> tuple[float, float]:
        if dialect_family(self._engine.dialect.name) not in _QUESTIONS:
            return 0.0, 0.0
        with self._engine.connect() as connection:
            return measure(connection, self._local)

    def _take(self, measured: tuple[float, float], at: float) -> None:
        """Use a measurement that was begun at `at` (ticks)."""
        ahead, error = measured
        is_within = abs(ahead) <= max(TOLERATED_SECONDS, error)
        if not is_within and abs(ahead - self._ahead) > TOLERATED_SECONDS:
            application_events.CLOCK_DIFFERS.log(
                log, seconds=abs(ahead), direction="behind" if ahead > 0 else "ahead of"
            )
        self._ahead = 0.0 if is_within else ahead
        self._found, self._measured_at = ahead, at
        self.watched()
