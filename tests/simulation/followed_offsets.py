"""The promise of a slave's offsets: a promotion takes a group back by a short time at most.

The slave takes the master's offsets over again and again, and saves them. So what it has as a
master is not less than all that it had, and its master had, within the last moments.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from reliable_mq.broker_core.state import BrokerState

LOOK_MS = 100.0
_BACK_MS = 1_500.0  # tables are taken every 500 ms, and saved every 300 ms

Key = tuple[str, str, int]  # group, topic, queue id


class FollowedOffsets:
    """What the offsets of a slave and its master were lately."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[Key, int]]] = deque()

    def look(self, time_ms: float, keys: Iterable[Key], states: Sequence[BrokerState]) -> None:
        """Note the least offset of each key; with no state the slave is down, or without room."""
        if not states:
            self._looks.clear()
            return
        least = {key: min(offset_of(state, key) for state in states) for key in keys}
        self._looks.append((time_ms, least))
        while self._looks and self._looks[0][0] < time_ms - _BACK_MS:
            self._looks.popleft()

    def floors(self) -> dict[Key, int]:
        """Return what a promotion must not fall behind."""
        looks = [least for _time, least in self._looks]
        if not looks or self._looks[-1][0] - self._looks[0][0] < _BACK_MS - 2 * LOOK_MS:
            return {}
        keys = set.intersection(*(set(each) for each in looks))
        return {key: min(each[key] for each in looks) for key in sorted(keys)}


def offset_of(state: BrokerState, key: Key) -> int:
    """Return the offset of a group; -1: it has none."""
    offset = state.offsets.get(*key)
    return -1 if offset is None else offset
