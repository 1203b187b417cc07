"""How much all queues of a client may hold together, so that its memory does not grow with them.

Receives what queues hold and how much they want to pull; hands on how much they may. Half of the
room is shared out evenly, so that a queue whose messages nobody finishes starves no other one; of
the other half whoever comes first takes what is there. Refuses to know a clock or a connection.
"""

from collections.abc import Callable

from reliable_mq.errors import InvariantBroken


class FlowBudget:
    """The account of the bytes that queues of one client hold, and have asked for.

    F3: what is held is the sum of what each queue has put in and not given back; nothing is asked
    for while as much as `size_max` is held or on its way.

    A message larger than a pull, and pulls that wait at the end of their queues when many messages
    come at once, go beyond: by one pull for each queue at most.

    Args:
        size_max: bytes.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._held = 0
        self._asked = 0
        self._queues = 0
        # Ordered sets: who has used up his share, and who found even that taken by others.
        self._waiting: dict[Callable[[], None], None] = {}
        self._crowded_out: dict[Callable[[], None], None] = {}

    @property
    def held(self) -> int:
        """How many bytes all queues hold."""
        return self._held

    def join(self) -> None:
        """Count one more queue."""
        self._queues += 1

    def leave(self, held: int) -> None:
        """Count a queue no more, which held so many bytes."""
        self._queues -= 1
        self.give(held)

    def has_room(self, held: int, wanted: int, wake: Callable[[], None]) -> bool:
        """Say whether a queue that holds `held` bytes may pull about `wanted` bytes now.

        If not, `wake` is called when it is worth asking again; who has waited longest first.
        """
        least = self._least(wanted)
        if self._room(held) >= least:
            self.withdraw(wake)
            return True
        line, other = self._waiting, self._crowded_out
        if self._share() - held >= least:
            line, other = other, line
        other.pop(wake, None)
        line[wake] = None
        return False

    def withdraw(self, wake: Callable[[], None]) -> None:
        """Wake him no more: another one shall have what he would be told of."""
        self._waiting.pop(wake, None)
        self._crowded_out.pop(wake, None)

    def ask(self, held: int, wanted: int) -> int:
        """Note that a pull is under way and return how many bytes it may bring; never 0.

        What was returned has to be given to `answered` when the pull has ended.
        """
        granted = max(min(wanted, self._room(held)), 1)
        self._asked += granted
        return granted

    def answered(self, granted: int) -> None:
        """Note that a pull has ended; what it brought is taken apart from that."""
        self._asked -= granted
        self._wake()

    def take(self, size: int) -> None:
        """Note that a queue holds so many bytes more."""
        self._held += size

    def give(self, size: int) -> None:
        """Note that a queue holds so many bytes less."""
        self._held -= size
        if self._waiting or self._crowded_out:
            self._wake()

    def invariants(self) -> None:
        """Hold F3.

        Raises:
            InvariantBroken: when it does not hold; a bug.
        """
        if min(self._held, self._asked, self._queues) < 0:
            raise InvariantBroken("F3: more was given back than was taken")

    def _room(self, held: int) -> int:
        taken = self._held + self._asked
        return min(self._size_max - taken, max(self._share() - held, self._size_max // 2 - taken))

    def _share(self) -> int:
        return self._size_max // 2 // max(self._queues, 1)

    def _least(self, wanted: int) -> int:
        """Return what a pull is worth its while for: half of what is wanted, or of a share."""
        return max(min(wanted, self._share()) // 2, 1)

    def _wake(self) -> None:
        """Wake as many as there is room for; who then finds none waits again."""
        taken = self._held + self._asked
        least = self._least(self._size_max)
        half = self._size_max // 2
        for line, limit in ((self._crowded_out, self._size_max), (self._waiting, half)):
            free = limit - taken
            while line and free >= least:
                wake = next(iter(line))
                del line[wake]
                wake()
                free -= least
