"""The replies of a broker, and when each may leave.

Receives frames for connections. Returns the frames that may leave at the end of a turn. All replies
that wait for the records of one turn wait together: these records become durable together.
"""

from collections import deque

from reliable_mq.errors import InvariantBroken

Answer = tuple[int, bytes]
"""A connection's id, and a whole frame."""


class Answers:
    """The replies of a broker.

    Invariant B2: a reply that waits for the log leaves only when the log is stored up to its
    offset. Waiting replies leave in the order of their offsets.
    """

    def __init__(self) -> None:
        self.ready: list[Answer] = []  # replies that may leave now
        self.held: list[Answer] = []  # replies that wait for the records of this turn
        self._held_end = 0
        # Replies of earlier turns, by the log offset that they wait for.
        self._withheld: deque[tuple[int, list[Answer]]] = deque()
        self.waiting = 0  # replies that wait for earlier turns, or for the file of a new topic
        self.released = 0  # the log offset up to which replies have left

    def now(self, connection: int, frame: bytes) -> None:
        """Send a reply at the end of this turn."""
        self.ready.append((connection, frame))

    def when_stored(self, connection: int, end: int, frame: bytes) -> None:
        """Send a reply when the log before `end` is stored as the flush type promises."""
        self.held.append((connection, frame))
        self._held_end = max(self._held_end, end)

    def release(self, end: int) -> int:
        """Release the replies that wait for log offsets up to `end`; return their number.

        With ASYNC_FLUSH an older `end` is reported again when it is durable. It releases nothing.
        """
        withheld, count = self._withheld, 0
        self.released = max(self.released, end)
        while withheld and withheld[0][0] <= end:
            answers = withheld.popleft()[1]
            count += len(answers)
            self.ready += answers
        self.waiting -= count
        return count

    def take(self, log_end: int) -> list[Answer]:
        """End a turn, after which the log ends at `log_end`; return the replies that may leave."""
        if self.held:
            self._withhold(log_end)
        ready, self.ready = self.ready, []
        return ready

    def take_ready(self) -> list[Answer]:
        """Return the replies that may leave now."""
        ready, self.ready = self.ready, []
        return ready

    def _withhold(self, log_end: int) -> None:
        held, self.held = self.held, []
        if self._held_end > log_end:
            raise InvariantBroken(f"B2: an answer waits for {self._held_end} of {log_end}")
        if log_end <= self.released:  # it was stored while the turn ran
            self.ready += held
            return
        self._withheld.append((log_end, held))
        self.waiting += len(held)
