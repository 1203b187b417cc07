"""How long to wait before looking again where nobody tells that there is something new. Pure."""

from reliable_mq.errors import UsageError


class Pace:
    """Waits that grow while nothing is found: a moment at first, twice as long each time.

    Invariant: a wait is never shorter than `shortest` nor longer than `longest`.

    Args:
        shortest: seconds, the first wait after something was found.
        longest: seconds, the wait of somebody who has not found anything for long.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        if not 0 < shortest <= longest:
            raise UsageError(f"a pace of {shortest}..{longest} s: positive and in order, please")
        self._shortest = shortest
        self._longest = longest
        self._next = shortest

    def found(self) -> None:
        """Note that there was something: more of it may be on its way."""
        self._next = self._shortest

    def pause(self) -> float:
        """Return how long to wait now, in seconds; the next wait is longer."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause
