"""Limits log lines of repeated faults: the first at once, then one at intervals. Pure."""

SAID_AGAIN_SECONDS = 60.0


class RateLimitedLog:
    """Decides which faults are logged.

    Invariant: no two lines of one fault within `SAID_AGAIN_SECONDS`.
    """

    def __init__(self) -> None:
        self._said: dict[object, float] = {}
        self._silent: dict[object, int] = {}

    def count_fault(self, fault: object, now: float) -> int | None:
        """Count a fault at the time `now`, in seconds.

        Returns:
            None: do not log it. Otherwise the number of repetitions since its last line.
        """
        said = self._said.get(fault)
        if said is not None and now - said < SAID_AGAIN_SECONDS:
            self._silent[fault] = self._silent.get(fault, 0) + 1
            return None
        self._said[fault] = now
        return self._silent.pop(fault, 0)
