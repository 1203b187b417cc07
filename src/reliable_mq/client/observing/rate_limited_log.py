"""What fails with every message is told once, and then once in a while how often it did. Pure."""

SAID_AGAIN_SECONDS = 60.0


class RateLimitedLog:
    """Says which faults are worth a line of the log.

    Invariant: of one fault, no two lines within `SAID_AGAIN_SECONDS`.
    """

    def __init__(self) -> None:
        self._said: dict[object, float] = {}
        self._silent: dict[object, int] = {}

    def note(self, fault: object, now: float) -> int | None:
        """Take in that a fault happened at `now`, in seconds.

        Returns:
            None: nothing is to be said. Else how often it happened since it was said last.
        """
        said = self._said.get(fault)
        if said is not None and now - said < SAID_AGAIN_SECONDS:
            self._silent[fault] = self._silent.get(fault, 0) + 1
            return None
        self._said[fault] = now
        return self._silent.pop(fault, 0)
