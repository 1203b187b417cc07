"""What the broker answers, and when it may leave.

Receives frames for connections; hands on those that may leave with a turn. Whatever waits for one
turn's records waits together: they are written, and become durable, in one.
"""

from collections import deque

from reliable_mq.errors import InvariantBroken

Answer = tuple[int, bytes]
"""A connection's id, and a whole frame."""


class Answers:
    """The answers of a broker.

    Invariant B2: an answer that waits for the log leaves only when the log has come to its offset,
    and answers that wait leave in the order of their offsets.
    """

    def __init__(self) -> None:
        self._ready: list[Answer] = []
        self._held: list[Answer] = []  # they wait for what this turn appends
        self._held_end = 0
        # Those of earlier turns, by the log offset for which they wait.
        self._withheld: deque[tuple[int, list[Answer]]] = deque()
        self.waiting = 0  # how many wait for turns that were taken, or a new topic's file
        self.released = 0  # the log offset up to which answers have left

    def now(self, connection: int, frame: bytes) -> None:
        """Answer at the end of this turn."""
        self._ready.append((connection, frame))

    def when_stored(self, connection: int, end: int, frame: bytes) -> None:
        """Answer when everything before log offset `end` is as safe as the flush type promises."""
        self._held.append((connection, frame))
        self._held_end = max(self._held_end, end)

    def release(self, end: int) -> int:
        """Let the answers go that waited for log offsets up to `end`; return how many.

        With ASYNC_FLUSH an older end comes again, when it is durable: it lets nobody go anew.
        """
        withheld, count = self._withheld, 0
        self.released = max(self.released, end)
        while withheld and withheld[0][0] <= end:
            answers = withheld.popleft()[1]
            count += len(answers)
            self._ready += answers
        self.waiting -= count
        return count

    def take(self, log_end: int) -> list[Answer]:
        """End a turn, after which the log ends at `log_end`; return the answers that may leave."""
        if self._held:
            self._withhold(log_end)
        return self.take_ready()

    def take_ready(self) -> list[Answer]:
        """Return the answers that may leave now."""
        ready, self._ready = self._ready, []
        return ready

    @property
    def is_held(self) -> bool:
        """Whether an answer waits for a turn to end."""
        return bool(self._held)

    def _withhold(self, log_end: int) -> None:
        held, self._held = self._held, []
        if self._held_end > log_end:
            raise InvariantBroken(f"B2: an answer waits for {self._held_end} of {log_end}")
        if log_end <= self.released:  # it was stored while the turn ran
            self._ready += held
            return
        self._withheld.append((log_end, held))
        self.waiting += len(held)
