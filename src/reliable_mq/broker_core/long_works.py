"""Requests that take long are handled in steps, so that other clients are served in between.

Receives steps of connections. Runs some of them in each turn, one request after another. Does not
know what they do.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

_T = TypeVar("_T")

Steps = Generator[int, None, _T]
"""Work under way. Each `next` runs one step, of a tenth of a millisecond or less, and returns what
it has cost, in microseconds; the result comes with `StopIteration`."""

Work = Steps[None]

_END_US = 100  # microseconds that the last step has cost, about: it returns no number


_LOOKED_AT_ONCE = 100  # rows


def parts_of(rows: list[_T], size: int = _LOOKED_AT_ONCE) -> Iterator[list[_T]]:
    """Yield the rows of a long request in parts of a step."""
    for at in range(0, len(rows), size):
        yield rows[at : at + size]


class LongWorks:
    """What is under way and what waits for it.

    A work that was begun is run to its end, also when its connection is closed: it may have changed
    a part of a table. Connections take turns, work by work.

    Attributes:
        busy: the connections with works. Others only read it.
        on_idle: called with a connection whose works are done.
        last: the connection whose work was the last to have a step.
    """

    def __init__(self) -> None:
        self.busy: dict[int, None] = {}
        self.on_idle: Callable[[int], None] = lambda _connection: None
        self.last = 0
        self._waiting: OrderedDict[int, deque[Work]] = OrderedDict()  # by connection
        self._under_way: tuple[int, Work] | None = None

    def add(self, connection: int, work: Work) -> None:
        """Add a work behind the others of its connection."""
        self.busy[connection] = None
        self._waiting.setdefault(connection, deque()).append(work)

    def forget(self, connection: int) -> None:
        """Drop what was not begun for a closed connection."""
        self._waiting.pop(connection, None)
        if self._under_way is None or self._under_way[0] != connection:
            self.busy.pop(connection, None)

    def run(self, cost_max: float) -> None:
        """Run steps until they have cost `cost_max` microseconds, or nothing is left."""
        cost = 0
        while cost < cost_max and (work := self._next()) is not None:
            try:
                cost += next(work)
            except StopIteration:
                cost += _END_US
                self._end()

    def _end(self) -> None:
        if self._under_way is None:
            return
        connection, self._under_way = self._under_way[0], None
        if connection not in self._waiting:
            del self.busy[connection]
            self.on_idle(connection)

    def _next(self) -> Work | None:
        if self._under_way is None and self._waiting:
            connection, works = self._waiting.popitem(last=False)
            self._under_way = connection, works.popleft()
            if works:
                self._waiting[connection] = works
            self.last = connection
        return self._under_way[1] if self._under_way is not None else None
