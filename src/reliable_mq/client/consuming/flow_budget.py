"""Flow control of a client: limits the bytes that all its queues hold, and so its memory.

It receives the size of queues and of the pulls that they want, and returns how much they may pull.
Half of the budget is shared evenly, so that a queue with unfinished messages does not starve the
others. The other half is first come, first served. It must not know a clock or a connection.
"""

from collections.abc import Callable

from reliable_mq.errors import InvariantBroken


class FlowBudget:
    """Counts the bytes that the queues of one client hold and have requested.

    F3: the held bytes are the sum of those that queues have taken and not given back. No pull is
    requested while `size_max` bytes are held or in flight.

    The limit may be exceeded by at most one pull per queue. One cause is a message larger than a
    pull. The other is many messages for pulls that wait at the end of their queues.

    Args:
        size_max: the limit in bytes.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        #: bytes that all queues hold; a queue adds what it takes
        self.held = 0
        #: bytes that pulls in progress may return
        self.asked = 0
        self._queues = 0
        # Ordered sets: queues above their share, and queues below it that found no room.
        self._waiting: dict[Callable[[], None], None] = {}
        self._crowded_out: dict[Callable[[], None], None] = {}
        #: the queues that wait for room
        self.lines = (self._crowded_out, self._waiting)

    def add_queue(self) -> None:
        """Add one more queue."""
        self._queues += 1

    def remove_queue(self, held: int) -> None:
        """Remove a queue that held this many bytes."""
        self._queues -= 1
        self.remove_bytes(held)

    def ample(self, wanted: int) -> int:
        """Return up to how many bytes held and asked for every queue may pull `wanted` bytes."""
        return self._size_max // 2 - wanted

    def has_room(self, held: int, wanted: int, wake: Callable[[], None]) -> bool:
        """Return whether a queue that holds `held` bytes may pull about `wanted` bytes now.

        If not, `wake` is called when it is worth asking again, in the order of waiting.
        """
        least = self._least(wanted)
        if self._room(held) >= least:
            self.cancel_wait(wake)
            return True
        line, other = self._waiting, self._crowded_out
        if self._share() - held >= least:
            line, other = other, line
        other.pop(wake, None)
        line[wake] = None
        return False

    def cancel_wait(self, wake: Callable[[], None]) -> None:
        """Forget `wake`: another waiting queue shall be woken instead."""
        self._waiting.pop(wake, None)
        self._crowded_out.pop(wake, None)

    def ask(self, held: int, wanted: int) -> int:
        """Note a pull in progress, and return how many bytes it may return; never 0.

        Pass the returned number to `answered` after the pull has ended.
        """
        granted = max(min(wanted, self._room(held)), 1)
        self.asked += granted
        return granted

    def answered(self, granted: int) -> None:
        """Note that a pull has ended. Its messages are in `held` already."""
        self.asked -= granted
        self._wake()

    def remove_bytes(self, size: int) -> None:
        """Note that a queue holds this many fewer bytes."""
        self.held -= size
        if self._waiting or self._crowded_out:
            self._wake()

    def invariants(self) -> None:
        """Check F3.

        Raises:
            InvariantBroken: when it does not hold; a bug.
        """
        if min(self.held, self.asked, self._queues) < 0:
            raise InvariantBroken("F3: more was given back than was taken")

    def _room(self, held: int) -> int:
        taken = self.held + self.asked
        return min(self._size_max - taken, max(self._share() - held, self._size_max // 2 - taken))

    def _share(self) -> int:
        return self._size_max // 2 // max(self._queues, 1)

    def _least(self, wanted: int) -> int:
        """Return the smallest pull worth its cost: half of the wanted size, or of a share."""
        return max(min(wanted, self._share()) // 2, 1)

    def _wake(self) -> None:
        """Wake as many waiting queues as have room. A queue that finds none then waits again."""
        taken = self.held + self.asked
        least = self._least(self._size_max)
        half = self._size_max // 2
        for line, limit in ((self._crowded_out, self._size_max), (self._waiting, half)):
            free = limit - taken
            while line and free >= least:
                wake = next(iter(line))
                del line[wake]
                wake()
                free -= least
