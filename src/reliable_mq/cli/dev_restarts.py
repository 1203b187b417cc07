"""How often `reliable-mq dev` starts a part again that has ended. Pure."""

from collections import defaultdict, deque

RESTARTS_MAX = 5
WITHIN_SECONDS = 60.0


class Restarts:
    """Allows few starts of each part within a short time: what ends again and again is broken.

    Invariant: of each part it remembers at most `RESTARTS_MAX` restarts.
    """

    def __init__(self) -> None:
        self._times: defaultdict[str, deque[float]] = defaultdict(
            lambda: deque(maxlen=RESTARTS_MAX)
        )

    def allow(self, part: str, now: float) -> bool:
        """Note that a part is started again at `now`, in seconds; return whether it may be."""
        times = self._times[part]
        if len(times) == RESTARTS_MAX and now - times[0] < WITHIN_SECONDS:
            return False
        times.append(now)
        return True

    @staticmethod
    def too_many(part: str) -> str:
        """Return what is said of a part that may not be started again."""
        return f"{part} has ended {RESTARTS_MAX + 1} times within {WITHIN_SECONDS:g} s"
