"""Keeps the figures of databases for scrapes: read at most every ten seconds, and limited in time.

A scrape returns the last figures. If they are old, it begins a reading in another thread, and waits
a moment for it. A database that does not answer costs the scrape this moment, and nothing else.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.telemetry.families import Sample

log = logging.getLogger(__name__)

KEPT_SECONDS = 10.0
"""For how long figures are served before the next scrape reads them again."""
PATIENCE_SECONDS = 2.0
"""How long a scrape waits for all readings together."""
STALE_SECONDS = 60.0
"""Figures that are older than this are not served."""
PART = 20
"""Readings take at most 1/PART of the time: after a slow one, the next comes later."""


class KeptReading:
    """The last figures of one database.

    Invariant: at most one reading is under way.

    Args:
        name: the database's name in the application.
        read: reads the figures; may wait, and may raise any error.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Sequence[Sample]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._reading: threading.Event | None = None
        self._figures: Sequence[Sample] = ()
        self._read_at = clock()
        self._next_at = 0.0
        self._is_up = False
        self._faults = FaultLog(log, f"metrics of database {name}")

    def begin(self) -> threading.Event | None:
        """Begin a reading if it is due; return the event of its end, None when none runs."""
        with self._lock:
            if self._reading is None and self._clock() >= self._next_at:
                self._reading = threading.Event()
                threading.Thread(
                    target=self._run, name=f"reliable-mq-figures-{self._name}", daemon=True
                ).start()
            return self._reading

    def _run(self) -> None:
        begun, figures = self._clock(), None
        try:
            figures = self._read()
            if self._faults.is_failing:
                self._faults.note_success()
        except Exception as error:  # noqa: BLE001 - the fault log reports it
            self._faults.log_fault(error)
        with self._lock:
            now = self._clock()
            self._is_up = figures is not None
            if figures is not None:
                self._figures, self._read_at = figures, now
            self._next_at = now + max(KEPT_SECONDS, (now - begun) * PART)
            done, self._reading = self._reading, None
        assert done is not None  # noqa: S101 - for type checkers
        done.set()

    def samples(self) -> Iterator[Sample]:
        """Yield the last figures, their age, and whether the database is up."""
        with self._lock:
            age = self._clock() - self._read_at
            is_late = self._reading is not None
            figures = self._figures if age < STALE_SECONDS else ()
            is_up = self._is_up and not is_late
        if is_up or is_late:
            yield from figures
        yield Sample("reliable_mq_database_up", float(is_up), (self._name,))
        yield Sample("reliable_mq_database_reading_age_seconds", age, (self._name,))


class KeptReadings:
    """The readings of all databases of an application."""

    def __init__(self, readings: Sequence[KeptReading], patience: float = PATIENCE_SECONDS) -> None:
        self._readings = readings
        self._patience = patience

    def samples(self) -> Iterator[Sample]:
        """Yield the figures of all databases; wait for readings at most the patience."""
        until = time.monotonic() + self._patience
        for event in [each.begin() for each in self._readings]:
            if event is not None:
                event.wait(max(0.0, until - time.monotonic()))
        for each in self._readings:
            yield from each.samples()
