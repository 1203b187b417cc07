"""Positions in the timer log of what waits in loaded slots, by due time: eight bytes for each."""

import heapq
from array import array
from collections.abc import Iterable, Iterator


class DuePositions:
    """A bucket of positions for each due time, in milliseconds.

    `first_ms` is the first due time, if there is any.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._times: list[int] = []  # a heap of the keys of the buckets

    def __iter__(self) -> Iterator[int]:
        for bucket in self._buckets.values():
            yield from bucket

    def add(self, position: int, due_ms: int) -> None:
        """Add a position."""
        bucket = self._buckets.get(due_ms)
        if bucket is None:
            bucket = self._buckets[due_ms] = array("q")
            heapq.heappush(self._times, due_ms)
        bucket.append(position)

    @property
    def first_ms(self) -> int:
        """The first due time; IndexError without any."""
        return self._times[0]

    def is_due(self, until_ms: int) -> bool:
        """Whether a position is due at `until_ms` or before."""
        return bool(self._times) and self._times[0] <= until_ms

    def first(self) -> list[int]:
        """Return the positions of the first due time, in the order of the log."""
        return sorted(self._buckets[self._times[0]])

    def keep_of_first(self, positions: Iterable[int]) -> None:
        """Let these be the positions that are left of the first due time."""
        self._buckets[self._times[0]] = array("q", positions)

    def end_first(self) -> None:
        """Remove the first due time."""
        del self._buckets[heapq.heappop(self._times)]
