"""Counts what a console has done, for Prometheus: answers, work, and log-ins that were refused.

Invariant: a counter never falls.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum

from reliable_mq.telemetry.families import Sample

STATUSES = ("2xx", "3xx", "4xx", "5xx")


class ConsoleFigures:
    """The figures of one console."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers = Counter[str]()
        self._rows = Counter[str]()
        self._works = Counter[str]()
        self._seconds = 0.0
        self._refused = 0
        #: returns how many pieces of work run now
        self.running: Callable[[], int] = int

    def answered(self, status: int, seconds: float) -> None:
        """Count an answer to a browser."""
        with self._lock:
            self._answers[f"{status // 100}xx"] += 1
            self._seconds += seconds

    def log_in_refused(self) -> None:
        """Count somebody who did not get in."""
        with self._lock:
            self._refused += 1

    def handled(self, outcome: StrEnum, count: int) -> None:
        """Count rows by what became of them."""
        with self._lock:
            self._rows[outcome.name.lower()] += count

    def ended(self, state: StrEnum) -> None:
        """Count a piece of work that has ended."""
        with self._lock:
            self._works[state.value] += 1

    def samples(self) -> Iterator[Sample]:
        """Yield the figures, also those that are 0: a rate needs a first value."""
        running = self.running()
        with self._lock:
            for status in STATUSES:
                yield Sample("reliable_mq_console_answers_total", self._answers[status], (status,))
            yield Sample("reliable_mq_console_answer_seconds_total", self._seconds)
            yield Sample("reliable_mq_console_refused_log_ins_total", self._refused)
            yield Sample("reliable_mq_console_running_works", running)
            for state in ("ended", "cancelled", "failed"):
                yield Sample("reliable_mq_console_works_total", self._works[state], (state,))
            for outcome in ("done", "changed", "refused"):
                yield Sample("reliable_mq_console_rows_total", self._rows[outcome], (outcome,))
