"""The pace of peers that create topics and queues by the thousand while others wait for a send.

Each new queue makes folders and a file. The file system commits them together with the next sync of
the log. So after thousands of them, one sync takes a tenth of a second and more, and each send of
others waits for it. And a new topic makes a tenth of a millisecond of work due on the loop.

The system may wake a client on the processor of the loop. Then the client has its answer only when
the loop rests. So creators go on one after another, each for one slice, with a rest after each.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from reliable_mq.runtime.connection_roles import HeldConnection
from reliable_mq.runtime.garbage import collect_new

CREATED_A_SECOND = 1_000
"""Topics and queues. A send to a new topic creates both."""
SECONDS_MAX = 1.0
"""A client gives up after three."""
_NEW_AT_ONCE = 8  # topics and queues; whoever sends meanwhile waits for all that they make due
_STEP_SECONDS = 0.002  # timers have milliseconds, so the loop rests for one at least
_JUST_SECONDS = 0.0005  # since a single request; then its client may not have the answer yet
_STAND_BACK_SECONDS = 0.001
_STAND_BACKS_MAX = 3  # else a busy broker would hold the creators for long
_STEPS_MAX = 128  # until everybody who waits has gone on


class FloodPace:
    """Holds the connections of a listener that created much, and no others.

    While it is on, they go on one by one, in the order in which they came. It ends when those that
    went on last have created nothing.

    Args:
        go_on: gets the connections that have waited long enough.

    Attributes:
        created: returns a count that grows with each topic and queue that is created.
        single_at: returns when somebody sent a single request, by the monotonic clock.
        creators: the connections that have created something lately.
        is_on: whether creators that want a turn must wait.
    """

    def __init__(self, go_on: Callable[[Sequence[HeldConnection]], None]) -> None:
        self._go_on = go_on
        self.created: Callable[[], int] = lambda: 0
        self.single_at: Callable[[], float] = lambda: 0.0
        self.creators: dict[HeldConnection, None] = {}
        self.is_on = False
        self._ahead = 0.0  # how much more the creators have created than the pace allows
        self._ahead_at = 0.0  # when this was so, by the clock of the loop
        self._has_created = False  # whether somebody has, since the last ones went on
        self._stood_back = 0  # how often the next one has let a single request go first
        self._uncollected = 0  # what was created since the last collection of garbage
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
        self._has_created = True
        self._uncollected += new

    def _ahead_now(self) -> float:
        passed = asyncio.get_running_loop().time() - self._ahead_at
        return max(0.0, self._ahead - passed * CREATED_A_SECOND)

    def hold(self, waiting: OrderedDict[HeldConnection, None]) -> bool:
        """Let the creators wait if they have created much; return whether they have.

        They wait for a time in proportion to what they have created.

        Args:
            waiting: the connections that wait for a turn; it loses the creators.
        """
        if not self.is_on and self._ahead <= _NEW_AT_ONCE:
            return False
        for each in self.creators:
            if each in waiting:
                del waiting[each]
                self._held[each] = None
        if self._end is None:
            self.is_on = True
            self._wait(SECONDS_MAX)
        return True

    def _wait(self, seconds_max: float) -> None:
        seconds = max(_STEP_SECONDS, min(self._ahead_now() / CREATED_A_SECOND, seconds_max))
        left = max(0.0, seconds_max - seconds)
        self._end = asyncio.get_running_loop().call_later(seconds, self._go_on_or_wait, left)

    def _go_on_or_wait(self, seconds_max: float) -> None:
        """Let some go on, unless a request under way has created more meanwhile."""
        if self._uncollected >= _NEW_AT_ONCE:  # in a turn of its own
            self._uncollected = 0
            collect_new()
            self._wait(seconds_max)
        elif self._ahead_now() > CREATED_A_SECOND * _STEP_SECONDS and seconds_max > 0:
            self._wait(seconds_max)
        elif self._stood_back < _STAND_BACKS_MAX and self._is_just_answered():
            self._stood_back += 1
            loop = asyncio.get_running_loop()
            self._end = loop.call_later(_STAND_BACK_SECONDS, self._go_on_or_wait, seconds_max)
        else:
            self._let_on()

    def _is_just_answered(self) -> bool:
        return time.monotonic() - self.single_at() < _JUST_SECONDS

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
        """Let the next go on, or all if those before them have created nothing."""
        self._stood_back = 0
        held = list(self._held)
        count = len(held) // _STEPS_MAX + 1
        if self._has_created:
            self._has_created = False
            self._wait(SECONDS_MAX * count / max(count, len(held)))
        else:
            self._end, self.is_on, count = None, False, len(held)
            self.creators.clear()
        for each in held[:count]:
            del self._held[each]
        self._go_on(held[:count])
