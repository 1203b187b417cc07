"""Work that takes a while: it runs in a thread of the console, in parts, at a rate, until its end.

Receives parts: each one is a transaction of its own, or a few requests to a broker. Gives counts
that a page shows. A part is done or not done; when the console ends, the other parts are not done.
What was done is in the audit, under the number of the work.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from reliable_mq.console.figures import ConsoleFigures
from reliable_mq.console.sources import fault_of
from reliable_mq.errors import ReliableMQError, UsageError
from reliable_mq.telemetry import application_events

WORKS_KEPT = 200
RUNNING_MAX = 4
"""So much work runs at the same time; more would only take connections from the pages."""
LINES_KEPT = 20
PART_SECONDS = 1.0
PART_ROWS_MAX = 500

log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """What became of one row."""

    DONE = "done"
    CHANGED = "changed since the preview"
    REFUSED = "refused"


class Part(NamedTuple):
    """What one part did: how many rows have each outcome, and why the first ones were refused."""

    counts: dict[Outcome, int]
    lines: tuple[str, ...] = ()


class WorkState(StrEnum):
    """Whether work goes on."""

    RUNNING = "running"
    ENDED = "ended"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, by whom and why.

    Attributes:
        number: identifies it: 32 hexadecimal characters. An order is carried out once.
        title: what is done, in a few words.
        back: the address of the page that shows what it has changed.
        actor: the person.
        why: the person's reason.
        rate: at most so many rows a second.
        total: how many rows the preview has counted.
    """

    number: str
    title: str
    back: str
    actor: str
    why: str
    rate: int
    total: int

    @property
    def part_rows(self) -> int:
        """How many rows a part has at most."""
        return max(1, min(PART_ROWS_MAX, int(self.rate * PART_SECONDS)))


Parts = Callable[[Order], Iterator[Part]]


class Progress(NamedTuple):
    """Work as a page shows it."""

    order: Order
    state: WorkState
    counts: dict[Outcome, int]
    lines: list[str]
    begun: datetime
    ended: datetime | None
    fault: str
    is_cancelling: bool

    @property
    def handled(self) -> int:
        """The rows that have an outcome."""
        return sum(self.counts.values())

    @property
    def share(self) -> int:
        """How much of it is over, in percent."""
        return min(100, 100 * self.handled // self.order.total) if self.order.total else 100

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this pace; None: that is not known."""
        taken = (datetime.now(UTC) - self.begun).total_seconds()
        if self.state is not WorkState.RUNNING or not self.handled:
            return None
        return max(0.0, (self.order.total - self.handled) * taken / self.handled)


class StartedWork:
    """One order that is carried out.

    Invariant: once `state` is not RUNNING, nothing is done any more.
    """

    def __init__(self, order: Order, parts: Parts, figures: ConsoleFigures) -> None:
        self.order = order
        self._figures = figures
        self._parts = parts
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._counts = Counter[Outcome]()
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._begun = datetime.now(UTC)
        self._ended: datetime | None = None
        self._state = WorkState.RUNNING
        self._fault = ""
        self.thread = threading.Thread(
            target=self.run, name=f"reliable-mq-console-work-{order.number[:8]}", daemon=True
        )

    def cancel(self) -> None:
        """Let the part that is under way be the last one."""
        self._cancelled.set()

    def progress(self) -> Progress:
        """Return how far it is."""
        with self._lock:
            return Progress(
                self.order,
                self._state,
                {each: self._counts[each] for each in Outcome},
                list(self._lines),
                self._begun,
                self._ended,
                self._fault,
                self._cancelled.is_set() and self._state is WorkState.RUNNING,
            )

    def run(self) -> None:
        """Carry it out."""
        state, fault = WorkState.ENDED, ""
        try:
            if not self._all_parts() and self.progress().handled < self.order.total:
                state = WorkState.CANCELLED
        except (ReliableMQError, SQLAlchemyError, OSError) as error:
            state, fault = WorkState.FAILED, fault_of(error)
        except Exception as error:  # noqa: BLE001 - a bug must not look like work that goes on
            application_events.CONSOLE_WORK_BROKEN.log(
                log, title=self.order.title, work=self.order.number, traceback_of=True
            )
            state, fault = WorkState.FAILED, f"this is a bug: {type(error).__name__}; see the log"
        with self._lock:
            if state is WorkState.ENDED:
                gone = self.order.total - sum(self._counts.values())
                self._counts[Outcome.CHANGED] += max(0, gone)  # they match no more
            self._state, self._fault, self._ended = state, fault, datetime.now(UTC)
        self._figures.ended(state)

    def _all_parts(self) -> bool:
        """Do part after part at the rate; return whether all are done."""
        next_at = time.monotonic()
        with _closed_at_the_end(self._parts(self.order)) as parts:
            for part in parts:
                with self._lock:
                    self._counts.update(part.counts)
                    self._lines.extend(part.lines)
                for outcome, count in part.counts.items():
                    self._figures.handled(outcome, count)
                next_at += sum(part.counts.values()) / self.order.rate
                if self._cancelled.wait(max(0.0, next_at - time.monotonic())):
                    return False
                next_at = max(next_at, time.monotonic() - PART_SECONDS)
        return not self._cancelled.is_set()


@contextmanager
def _closed_at_the_end(parts: Iterator[Part]) -> Iterator[Iterator[Part]]:
    """Let a generator that is not read to its end do its last steps, such as to stop a process."""
    try:
        yield parts
    finally:
        if isinstance(parts, Generator):
            parts.close()


class Works:
    """All work of one console.

    Invariant: two orders with one number are one work; at most `WORKS_KEPT` are known.

    Args:
        figures: counts what it does.
    """

    def __init__(self, figures: ConsoleFigures | None = None) -> None:
        self._lock = threading.Lock()
        self._figures = figures or ConsoleFigures()
        self._figures.running = self.running
        self._works: dict[str, StartedWork] = {}

    def start(self, order: Order, parts: Parts) -> StartedWork:
        """Begin to carry out an order; return the work that has begun already, if it has.

        Raises:
            UsageError: too much work is under way.
        """
        with self._lock:
            if order.number in self._works:
                return self._works[order.number]
            running = self._running()
            if len(running) >= RUNNING_MAX:
                raise UsageError(
                    f"{RUNNING_MAX} pieces of work are under way: wait for one, or cancel one"
                )
            while len(self._works) >= WORKS_KEPT:
                oldest = next(each for each, work in self._works.items() if work not in running)
                del self._works[oldest]
            work = self._works[order.number] = StartedWork(order, parts, self._figures)
            work.thread.start()
            return work

    def running(self) -> int:
        """Return how many pieces of work run now."""
        with self._lock:
            return len(self._running())

    def _running(self) -> list[StartedWork]:
        return [each for each in self._works.values() if each.progress().ended is None]

    def get(self, number: str) -> StartedWork | None:
        """Return the work with a number; None: this process has none."""
        with self._lock:
            return self._works.get(number)

    def all(self) -> list[Progress]:
        """Return all work, the newest first."""
        with self._lock:
            works = list(self._works.values())
        return [each.progress() for each in reversed(works)]

    def close(self, seconds: float = 10.0) -> None:
        """Let each part that is under way be the last one, and wait for their ends."""
        with self._lock:
            works = list(self._works.values())
        for each in works:
            each.cancel()
        for each in works:
            each.thread.join(seconds)
