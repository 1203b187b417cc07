"""The time by which rows are judged: the database's, so that processes on many machines agree.

Leases and due times in rows are written by one process and read by another. A machine whose clock
is ahead would take over what runs elsewhere, one that is behind would wait for the dead. So the
difference to the database's clock is measured now and then, and added; no statement asks for it.
"""

import logging
import math
import time
from collections.abc import Callable

from sqlalchemy import Connection, Engine, text

from reliable_mq.database.sql_types import family_of
from reliable_mq.runtime.lease_clock import ticks_clock, ticks_run
from reliable_mq.watched_time import ClockReading, WatchedTime, first_look

log = logging.getLogger(__name__)

TOLERATED_SECONDS = 0.5
"""A smaller difference is left alone: it is within every lease, and of the size of its error."""
MEASURED_SECONDS = 60.0
"""How long a measurement counts."""


# The seconds since the epoch at which the server reads this. MySQL's UNIX_TIMESTAMP goes by the
# session's time zone, which counts an hour twice in autumn; so the parts are taken from UTC.
_QUESTIONS = {
    "postgresql": text("SELECT extract(epoch FROM clock_timestamp())"),
    "mysql": text(
        "SELECT timestampdiff(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) / 1000000"
    ),
}


def measure(connection: Connection, local: Callable[[], float]) -> tuple[float, float]:
    """Return how far the database's clock is ahead of `local`, and how wrong that may be.

    In seconds; the second is the time that the answer took. SQLite has no clock of its own.
    """
    question = _QUESTIONS.get(family_of(connection.dialect.name))
    if question is None:
        return 0.0, 0.0
    before = local()
    theirs = float(connection.execute(question).scalar_one())
    after = local()
    return theirs - (before + after) / 2, after - before


class DatabaseClock:
    """Seconds since the epoch as the database counts them.

    Invariant: what is added to the local clock is 0, or more than `TOLERATED_SECONDS` either way.

    Args:
        engine: the database. An SQLite file has the clock of its only machine.
        local: this machine's clock.
        ticks: seconds that nobody sets, to know when a measurement is old; default: the
            machine's, see `ticks_clock`.
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
        self._ahead = self._found = 0.0  # what is added, and what was measured
        self._measured_at = self._told_at = -math.inf  # by `ticks`
        self._known: WatchedTime | None = None
        #: told once a minute by `measured_now`: how far the local clock is ahead, and the time
        self.on_measured: Callable[[float, float], None] | None = None

    def now(self) -> float:
        """Return the time by the last measurement; never waits."""
        return self._local() + self._ahead

    def now_on(self, connection: Connection) -> float:
        """Return the time; this connection asks first when that was a minute ago, or never.

        For who has a connection in hand and perhaps a transaction on it: a second connection could
        wait for its locks, or for a pool that is used up. Raises whatever the database raises.
        """
        at = self._ticks()
        if at >= self._measured_at + MEASURED_SECONDS:
            self._take(measure(connection, self._local), at)
        return self.now()

    def measured_now(self) -> float:
        """Return the time; the database is asked first when that was a minute ago, or never.

        Raises whatever the database raises.
        """
        if self.is_untold:
            at = self._ticks()
            self._take(self._asked(), at)
            self.tell()
        return self.now()

    def reading(self) -> ClockReading:
        """Return a look at this clock and at one that nobody sets, both at this moment.

        A time that was read before a wait for the database would look like a clock that went back.
        """
        return ClockReading(self.now(), self._ticks(), ticks_run())

    def watched(self) -> WatchedTime:
        """Return what this process knows of the clock since it asked first."""
        reading, known = self.reading(), self._known
        self._known = (
            first_look(reading, None, unwatched_max=0.0)
            if known is None
            else known.looked(reading, unwatched_max=0.0)
        )
        return self._known

    @property
    def is_untold(self) -> bool:
        """Whether `on_measured` was not told within the last minute."""
        return self._ticks() >= self._told_at + MEASURED_SECONDS

    def tell(self) -> None:
        """Tell `on_measured` of the last measurement; it may wait for the database."""
        self._told_at = self._ticks()
        if self.on_measured is not None:
            self.on_measured(-self._found, self.now())

    def _asked(self) -> tuple[float, float]:
        if family_of(self._engine.dialect.name) not in _QUESTIONS:
            return 0.0, 0.0
        with self._engine.connect() as connection:
            return measure(connection, self._local)

    def _take(self, measured: tuple[float, float], at: float) -> None:
        """Go by a measurement that was begun at `at` (ticks)."""
        ahead, error = measured
        is_within = abs(ahead) <= max(TOLERATED_SECONDS, error)
        if not is_within and abs(ahead - self._ahead) > TOLERATED_SECONDS:
            log.warning(
                "the clock of this machine is %.1f s %s the database's; the database's is used",
                *(abs(ahead), "behind" if ahead > 0 else "ahead of"),
            )
        self._ahead = 0.0 if is_within else ahead
        self._found, self._measured_at = ahead, at
        self.watched()
