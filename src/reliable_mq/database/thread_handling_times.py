"""How long a process's handlers took, by consumer group. The doctor compares it with the leases."""

import threading


class HandlingTimes:
    """The longest call of each consumer group since the last `take_longest`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: seconds by group: what is not longer need not be noted
        self.longest: dict[str, float] = {}

    def note_handled(self, group: str, seconds: float) -> None:
        """Note that a delivery of the group was handled in `seconds`."""
        with self._lock:
            self.longest[group] = max(seconds, self.longest.get(group, 0.0))

    def take_longest(self) -> dict[str, float]:
        """Return the longest call by group, and forget them."""
        with self._lock:
            longest, self.longest = self.longest, {}
        return longest
