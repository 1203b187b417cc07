"""Keeps a value that takes long to read: it is read in another thread, and shown with its age.

A page waits for a reading only for a moment. If its source is away, the page shows the last value.
"""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar, cast

from reliable_mq.database.sql_faults import fault_line

T = TypeVar("T")

PATIENCE_SECONDS = 2.0
"""How long a page waits for a reading."""
PART = 20
"""Readings take at most 1/PART of the time: after a slow one, the next comes later."""


class Reading(NamedTuple, Generic[T]):
    """What is known of a source.

    `value`: the last one that was read; None: there is none. `age`: its age in seconds. `fault`:
    why the newest reading failed, in one line; "": it did not.
    """

    value: T | None
    age: float
    fault: str


class KeptValue(Generic[T]):
    """The last value of one source.

    Invariant: at most one reading is under way.

    Args:
        read: reads the value; may wait, and may raise any error.
        seconds: for how long a value is good.
        patience: how long `look` waits, in seconds.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        read: Callable[[], T],
        seconds: float,
        *,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._reading: threading.Event | None = None
        self._value: T | None = None
        self._read_at = self._next_at = clock()
        self._fault = ""

    def begin(self) -> threading.Event | None:
        """Begin a reading if the last value is old. Return its end; None: none is under way."""
        with self._lock:
            if self._reading is None and self._clock() >= self._next_at:
                self._reading = threading.Event()
                threading.Thread(target=self._run, name="reliable-mq-console", daemon=True).start()
            return self._reading

    def look(self) -> Reading[T]:
        """Return the last value; begin a reading if it is old, and wait a moment for its end."""
        running = self.begin()
        is_late = running is not None and not running.wait(self._patience)
        with self._lock:
            value, fault = self._value, self._fault
            age = self._clock() - self._read_at
        if is_late and not fault:
            fault = f"no answer within {self._patience:g} s"
        return Reading(value, age, fault)

    def _run(self) -> None:
        begun = self._clock()
        value: T | None = None
        fault = ""
        try:
            value = self._read()
        except Exception as error:  # noqa: BLE001 - the page says it
            fault = fault_line(error) or type(error).__name__
        with self._lock:
            now = self._clock()
            if not fault:
                self._value, self._read_at = value, now
            self._fault = fault
            self._next_at = now + max(self._seconds, (now - begun) * PART)
            done, self._reading = self._reading, None
        if done is not None:
            done.set()


class KeptResults:
    """Results of slow statements, by a key, for a while: of pages that are asked for again.

    Invariant: at most `most` are kept, the newest ones, and none is empty.

    Args:
        seconds: for how long a result is good.
        most: so many are kept.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, seconds: float, most: int = 32, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return the result of a key; read it if there is none, or if it is old.

        An empty result is not kept: it was read quickly, and there may be one in a moment.
        """
        with self._lock:
            read_at, value = self._kept.get(key, (-self._seconds, None))
        if self._clock() - read_at < self._seconds:
            return cast("T", value)
        found = read()
        with self._lock:
            self._kept.pop(key, None)
            if found:
                self._kept[key] = self._clock(), found
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        return found
