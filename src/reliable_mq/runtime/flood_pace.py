"""The pace of peers that create topics and queues by the thousand while others wait for a send.

Each new queue makes folders and a file. The file system commits them together with the next sync of
the log. So after thousands of them, one sync takes a tenth of a second and more, and each send of
others waits for it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from reliable_mq.broker_core.state import BrokerState
from reliable_mq.runtime.connection_roles import HeldConnection

CREATED_A_SECOND = 2_000
"""Topics and queues. A send to a new topic creates both."""


def created_in(state: BrokerState) -> int:
    """Return a count that grows with each new topic and each queue that gets its first message."""
    return state.store.appender.begun + len(state.topics)


class FloodPace:
    """Holds the connections of a listener that created much, and no others.

    Args:
        go_on: gets the connections that have waited long enough.
    """

    def __init__(self, go_on: Callable[[Sequence[HeldConnection]], None]) -> None:
        self._go_on = go_on
        self._creators: dict[HeldConnection, None] = {}  # since the last wait
        self._held: dict[HeldConnection, None] = {}
        self._end: asyncio.TimerHandle | None = None

    @property
    def held(self) -> int:
        """How many connections wait."""
        return len(self._held)

    def note(self, connection: HeldConnection) -> None:
        """Note that a connection has created something in its turn."""
        self._creators[connection] = None

    def hold(self, waiting: OrderedDict[HeldConnection, None], created: int) -> None:
        """Let the creators among those that wait for a turn wait longer.

        Args:
            waiting: loses them.
            created: what they have created; the time is in proportion to it.
        """
        if not self._creators:
            return
        for each in self._creators:
            if each in waiting:
                del waiting[each]
                self._held[each] = None
        if self._end is None:
            seconds = created / CREATED_A_SECOND
            self._end = asyncio.get_running_loop().call_later(seconds, self._let_on)

    def takes(self, connection: HeldConnection) -> bool:
        """Whether a connection that wants a turn must wait; then it is held."""
        if self._end is None or connection not in self._creators:
            return False
        self._held[connection] = None
        return True

    def forget(self, connection: HeldConnection) -> None:
        """Forget a closed connection."""
        self._creators.pop(connection, None)
        self._held.pop(connection, None)

    def close(self) -> None:
        """Let nobody go on any more."""
        if self._end is not None:
            self._end.cancel()

    def _let_on(self) -> None:
        self._end = None
        self._creators.clear()
        held, self._held = list(self._held), {}
        self._go_on(held)
