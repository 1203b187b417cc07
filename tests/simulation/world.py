"""Time and chance: one heap of events, one clock, one source of randomness.

Everything that happens is an event at a time; two events at one time happen in the order in which
they were asked for. So a seed decides everything.
"""

import heapq
from collections import deque
from collections.abc import Callable
from random import Random

from tests.simulation.plan import START_MS, Plan

_REMEMBERED = 60  # lines of the trace that are kept when nobody asked for all


class World:
    """The simulated world's clock.

    Args:
        plan: what the seed decided.
        traces_all: whether every event is kept for the reader; else only the last ones are.
    """

    def __init__(self, plan: Plan, *, traces_all: bool = False) -> None:
        self.plan = plan
        self.random = Random(plan.seed * 2 + 1)
        self.time_ms = float(START_MS)
        self.event_count = 0
        self.is_calm = False  # whether the faults have ended
        self.clock_ahead_ms = 0.0  # how far the clock was set forward, all in all
        self.highest_ms = 0.0  # the latest time that the clock ever showed when it was set
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0
        self._trace: deque[tuple[float, tuple[object, ...]]] = deque(
            maxlen=None if traces_all else _REMEMBERED
        )

    @property
    def now_ms(self) -> int:
        """The clock as a broker reads it."""
        return int(self.time_ms + self.clock_ahead_ms)

    def set_clock(self, change_ms: float) -> None:
        """Set the clock forward or back."""
        self.highest_ms = max(self.highest_ms, self.time_ms + self.clock_ahead_ms)
        self.clock_ahead_ms += change_ms

    def later(self, delay_ms: float, act: Callable[[], None]) -> None:
        """Let something happen after `delay_ms`."""
        self._asked += 1
        heapq.heappush(self._heap, (self.time_ms + delay_ms, self._asked, act))

    def step(self, until_ms: float) -> bool:
        """Let the next event happen, unless it is later than `until_ms`; return whether."""
        if not self._heap or self._heap[0][0] > until_ms:
            self.time_ms = max(self.time_ms, until_ms)
            return False
        self.time_ms, _, act = heapq.heappop(self._heap)
        self.event_count += 1
        act()
        return True

    def chance(self, probability: float) -> bool:
        """Return True so often; a fault that cannot happen draws no number."""
        return probability > 0 and self.random.random() < probability

    def around(self, mean_ms: float) -> float:
        """Return a random duration with this mean."""
        return self.random.expovariate(1.0 / mean_ms)

    def note(self, *what: object) -> None:
        """Remember an event for whoever reads why a seed failed."""
        self._trace.append((self.time_ms, what))

    def trace(self) -> list[str]:
        """Return the remembered events as lines."""
        return [
            f"{time - START_MS:10.2f} ms  {' '.join(str(part) for part in parts)}"
            for time, parts in self._trace
        ]
