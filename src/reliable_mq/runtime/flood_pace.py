"""The pace of peers that create topics and queues by the thousand while others wait for a send.

Each new queue makes folders and a file. The file system commits them together with the next sync of
the log. So after thousands of them, one sync takes a tenth of a second and more, and each send of
others waits for it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from reliable_mq.runtime.connection_roles import HeldConnection

CREATED_A_SECOND = 2_000
"""Topics and queues. A send to a new topic creates both."""
SECONDS_MAX = 1.0
"""A client gives up after three."""
_NEW_AT_ONCE = 64  # topics and queues; a queue takes 5 to 20 us when its first message is stored


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
        self._before = 0  # what was created before the creators have created anything
        self._held: dict[HeldConnection, None] = {}
        self._end: asyncio.TimerHandle | None = None

    @property
    def held(self) -> int:
        """How many connections wait."""
        return len(self._held)

    def begin_anew(self) -> None:
        """Forget the creators, unless they wait."""
        if not self.is_on:
            self.creators.clear()

    def note(self, connection: HeldConnection, before: int) -> None:
        """Note that a connection has created something in its turn.

        Args:
            connection: the creator.
            before: what `created` returned before its turn.
        """
        if not self.creators:
            self._before = before
        self.creators[connection] = None

    def hold(self, waiting: OrderedDict[HeldConnection, None]) -> bool:
        """Let the creators wait if they have created much; return whether they have.

        They wait for a time in proportion to what they have created.

        Args:
            waiting: the connections that wait for a turn; it loses the creators.
        """
        now = self.created()
        new = now - self._before
        if new <= _NEW_AT_ONCE:
            return False
        self._before = now
        for each in self.creators:
            if each in waiting:
                del waiting[each]
                self._held[each] = None
        if self._end is None:
            seconds, self.is_on = min(new / CREATED_A_SECOND, SECONDS_MAX), True
            self._end = asyncio.get_running_loop().call_later(seconds, self._let_on)
        return True

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
