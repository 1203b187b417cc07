"""The pace of peers that create topics and queues by the thousand while others wait for a send.

Each new queue makes folders and a file. The file system commits them together with the next sync of
the log. So after thousands of them, one sync takes a tenth of a second and more, and each send of
others waits for it. And a new topic makes a tenth of a millisecond of work due on the loop.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from reliable_mq.runtime.connection_roles import HeldConnection
from reliable_mq.runtime.garbage import collect_new

CREATED_A_SECOND = 1_000
"""Topics and queues. A send to a new topic creates both."""
SECONDS_MAX = 1.0
"""A client gives up after three."""
_NEW_AT_ONCE = 8  # topics and queues; whoever sends meanwhile waits for all that they make due


class FloodPace:
    """Holds the connections of a listener that created much, and no others.

    Args:
        go_on: gets the connections that have waited long enough.

    Attributes:
        created: returns a count that grows with each topic and queue that is created.
        creators: the connections that have created something lately.
        is_on: whether creators that want a turn must wait.
    """

    def __init__(self, go_on: Callable[[Sequence[HeldConnection]], None]) -> None:
        self._go_on = go_on
        self.created: Callable[[], int] = lambda: 0
        self.creators: dict[HeldConnection, None] = {}
        self.is_on = False
        self._ahead = 0.0  # how much more the creators have created than the pace allows
        self._ahead_at = 0.0  # when this was so, by the clock of the loop
        self._held: dict[HeldConnection, None] = {}
        self._end: asyncio.TimerHandle | None = None

    @property
    def held(self) -> int:
        """How many connections wait."""
        return len(self._held)

    def begin_anew(self) -> None:
        """Forget the creators and what they have created, unless they wait."""
        if not self.is_on:
            self.creators.clear()
            self._ahead = 0.0

    def note(self, connection: HeldConnection, new: int) -> None:
        """Note that a connection has created so much."""
        ahead = self._ahead_now()
        if not (ahead or self.is_on):  # what others have created is long ago
            self.creators.clear()
        self._ahead = min(ahead + new, CREATED_A_SECOND * SECONDS_MAX)
        self._ahead_at = asyncio.get_running_loop().time()
        self.creators[connection] = None

    def _ahead_now(self) -> float:
        passed = asyncio.get_running_loop().time() - self._ahead_at
        return max(0.0, self._ahead - passed * CREATED_A_SECOND)

    def hold(self, waiting: OrderedDict[HeldConnection, None]) -> bool:
        """Let the creators wait if they have created much; return whether they have.

        They wait for a time in proportion to what they have created.

        Args:
            waiting: the connections that wait for a turn; it loses the creators.
        """
        if self._ahead <= _NEW_AT_ONCE:
            return False
        for each in self.creators:
            if each in waiting:
                del waiting[each]
                self._held[each] = None
        if self._end is None:
            self.is_on = True
            self._wait(SECONDS_MAX)
            collect_new()
        return True

    def _wait(self, seconds_max: float) -> None:
        seconds = min(self._ahead_now() / CREATED_A_SECOND, seconds_max)
        left = seconds_max - seconds
        self._end = asyncio.get_running_loop().call_later(seconds, self._go_on_or_wait, left)

    def _go_on_or_wait(self, seconds_max: float) -> None:
        """Let the creators go on, unless a request under way has created more meanwhile."""
        if self._ahead_now() > _NEW_AT_ONCE and seconds_max > 0:
            self._wait(seconds_max)
        else:
            self._let_on()

    def takes(self, connection: HeldConnection) -> bool:
        """Whether a connection that wants a turn must wait; then it is held."""
        if not self.is_on or connection not in self.creators:
            return False
        self._held[connection] = None
        return True

    def forget(self, connection: HeldConnection) -> None:
        """Forget a closed connection."""
        self.creators.pop(connection, None)
        self._held.pop(connection, None)

    def close(self) -> None:
        """Let nobody go on any more."""
        if self._end is not None:
            self._end.cancel()

    def _let_on(self) -> None:
        self._end, self.is_on = None, False
        self.creators.clear()
        held, self._held = list(self._held), {}
        self._go_on(held)
