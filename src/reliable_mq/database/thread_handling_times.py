"""How long a process's handlers took, by consumer group. The doctor compares it with the leases."""

import threading


class HandlingTimes:
    """The longest call of each consumer group since the last `take`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._longest: dict[str, float] = {}

    def note(self, group: str, seconds: float) -> None:
        """Note that a delivery of the group was handled in `seconds`."""
        if seconds > self._longest.get(group, 0.0):
            with self._lock:
                self._longest[group] = max(seconds, self._longest.get(group, 0.0))

    def take(self) -> dict[str, float]:
        """Return the longest call by group, and forget them."""
        with self._lock:
            longest, self._longest = self._longest, {}
        return longest
