"""Pulls that found nothing and wait for a message.

A pull that is answered leaves nothing behind, and finding the ones to answer costs nothing for
those that wait for something else. Those whose message has come are ready: they are answered one
after another, and go on waiting until then. The heap of deadlines forgets lazily: it is rebuilt
when more than half of it is over.
Invariant L3: a waiting pull is answered exactly once: by a message, by its deadline, or never,
when its connection is gone. Source: Apache RocketMQ `PullRequestHoldService`.
"""

import heapq
from collections import deque
from collections.abc import Iterable

import msgspec

from reliable_mq.broker_core.filter.sql92 import Filter
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader

Wanted = frozenset[int] | Filter | None
"""Which messages a pull wants: those with one of these tag hashes, by a filter, or all."""

_HEAP_SIZE_MIN = 64  # below, a rebuild is not worth it
_FILTERED = "filtered"  # in the place of a tag hash: the filter is asked for every message

# What waiting pulls take of the memory, in bytes: measured, and rounded up.
_PULL_SIZE = 1_000
_TAG_SIZE = 350
_FILTER_PART_SIZE = 450
# And of the processor, in microseconds, when it ends or goes on.
_PULL_COST = 30
BYTES_FOR_COST = 1024


class PullLimits(msgspec.Struct, frozen=True):
    """How many pulls of one connection wait, and how many bytes of memory pulls may take."""

    count_of_one: int = 10_000
    size_of_one: int = 32 * 1024 * 1024
    size_of_all: int = 256 * 1024 * 1024


class WaitingPull(msgspec.Struct, eq=False):
    """One held request.

    `deadline_ms` is when it is answered in any case. `wanted` says what may answer it: tag hashes,
    a filter, None for every message. With a filter, `judged` is the first queue offset that it has
    not seen. `number` is given when it begins to wait. `size` is how many bytes of memory it takes.
    """

    connection: int
    address: str
    command: Command
    header: PullMessageHeader
    deadline_ms: int
    wanted: Wanted
    judged: int = 0
    number: int = 0

    size: int = 0

    def __post_init__(self) -> None:
        wanted, header = self.wanted, self.header
        size = (
            _PULL_SIZE + 4 * len(header.subscription or "") + 4 * len(header.expression_type or "")
        )
        if isinstance(wanted, Filter):
            size += _FILTER_PART_SIZE * wanted.parts + 4 * len(wanted.text)
        elif wanted is not None:
            size += _TAG_SIZE * len(wanted)
        self.size = size

    @property
    def cost(self) -> int:
        """Microseconds of work that its end takes, without its answer: each tag is taken out."""
        return _PULL_COST + self.size // BYTES_FOR_COST


class WaitingPulls:
    """The held pulls: by number, by queue and tag, by connection, by deadline.

    Args:
        limits: how much may wait.
    """

    def __init__(self, limits: PullLimits | None = None) -> None:
        self._limits = limits or PullLimits()
        self._size = 0
        self._sizes: dict[int, int] = {}  # by connection
        self._ready: deque[dict[int, None]] = deque()  # numbers, of some that wait no longer, too
        self._waiting: dict[int, WaitingPull] = {}
        self._by_queue: dict[tuple[str, int], dict[int | str | None, dict[int, None]]] = {}
        self._by_connection: dict[int, dict[int, None]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def invariants(self) -> None:
        """L3, as far as it can be seen here: everybody who waits is found in each way."""
        found = {n for by_tag in self._by_queue.values() for some in by_tag.values() for n in some}
        found |= {n for some in self._ready for n in some if n in self._waiting}
        wanting = {number for number, pull in self._waiting.items() if _keys(pull)}
        connected = {n for some in self._by_connection.values() for n in some}
        timed = {number for _, number in self._deadlines}
        if found != wanting or not connected == self._waiting.keys() <= timed:
            raise InvariantBroken(f"L3: {len(self._waiting)} pulls wait, {len(found)} are found")
        size = sum(pull.size for pull in self._waiting.values())
        if not size == self._size == sum(self._sizes.values()):
            raise InvariantBroken(f"L3: {size} bytes of pulls wait, {self._size} are counted")

    def has_room(self, pull: WaitingPull) -> bool:
        """Whether one more pull may wait, within the limits."""
        limits, connection = self._limits, pull.connection
        return (
            len(self._by_connection.get(connection, ())) < limits.count_of_one
            and self._sizes.get(connection, 0) + pull.size <= limits.size_of_one
            and self._size + pull.size <= limits.size_of_all
        )

    def hold(self, pull: WaitingPull) -> None:
        """Let a pull wait."""
        number = pull.number = self._last_number = self._last_number + 1
        self._waiting[number] = pull
        by_tag = self._by_queue.setdefault((pull.header.topic, pull.header.queue_id), {})
        for tag in _keys(pull):
            by_tag.setdefault(tag, {})[number] = None
        self._by_connection.setdefault(pull.connection, {})[number] = None
        heapq.heappush(self._deadlines, (pull.deadline_ms, number))
        self._count(pull.connection, pull.size)

    def _count(self, connection: int, size: int) -> None:
        self._size += size
        of_connection = self._sizes.get(connection, 0) + size
        if of_connection:
            self._sizes[connection] = of_connection
        else:
            del self._sizes[connection]

    def arrived(self, topic: str, queue_id: int, tags_codes: Iterable[int]) -> None:
        """Let the pulls be ready that messages with these tags may answer."""
        key = (topic, queue_id)
        by_tag = self._by_queue.get(key)
        if by_tag is None:
            return
        for tag in (None, _FILTERED, *tags_codes):
            some = by_tag.pop(tag, None)
            if some:
                self._ready.append(some)
        if not by_tag:
            del self._by_queue[key]

    @property
    def is_ready(self) -> bool:
        """Whether `take_ready` may have one."""
        return bool(self._ready)

    def take_ready(self) -> WaitingPull | None:
        """Return the pull that is ready longest; it waits no longer. None when there is none.

        One with a filter has to judge what came; if it wants nothing of that it is held again.
        """
        while self._ready:
            some = self._ready[0]
            while some:
                number = next(iter(some))
                del some[number]
                if number in self._waiting:
                    return self._remove(number)
            self._ready.popleft()
        return None

    def of_group(self, topic: str, queue_id: int, group: str) -> list[WaitingPull]:
        """Return the waiting pulls of a group; they go on waiting."""
        by_tag = self._by_queue.get((topic, queue_id), {})
        numbers = {number: None for some in by_tag.values() for number in some}
        pulls = [self._waiting[number] for number in numbers]
        return [pull for pull in pulls if pull.header.consumer_group == group]

    def release(self, pull: WaitingPull) -> None:
        """Let a pull wait no longer; the caller answers it."""
        self._remove(pull.number)

    def expire(self, pull: WaitingPull) -> None:
        """Let a waiting pull be due at once."""
        pull.deadline_ms = 0
        heapq.heappush(self._deadlines, (0, pull.number))

    def take_due(self, now_ms: int) -> WaitingPull | None:
        """Return the pull that is due longest; it waits no longer. None when there is none."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            number = heapq.heappop(self._deadlines)[1]
            if number in self._waiting:
                return self._remove(number)
        return None

    def forget(self, connection: int) -> None:
        """Drop the pulls of a connection that closed."""
        for number in list(self._by_connection.get(connection, ())):
            self._remove(number)

    def _remove(self, number: int) -> WaitingPull:
        pull = self._waiting.pop(number)
        key = (pull.header.topic, pull.header.queue_id)
        by_tag = self._by_queue.get(key, {})
        for tag in _keys(pull):
            some = by_tag.get(tag, {})
            some.pop(number, None)  # not there when it is ready
            if not some:
                by_tag.pop(tag, None)
        if not by_tag:
            self._by_queue.pop(key, None)
        self._count(pull.connection, -pull.size)
        of_connection = self._by_connection[pull.connection]
        del of_connection[number]
        if not of_connection:
            del self._by_connection[pull.connection]
        if len(self._deadlines) > 2 * len(self._waiting) + _HEAP_SIZE_MIN:
            self._deadlines = [(p.deadline_ms, n) for n, p in self._waiting.items()]
            heapq.heapify(self._deadlines)
        return pull


def _keys(pull: WaitingPull) -> tuple[int | str | None, ...]:
    if isinstance(pull.wanted, Filter):
        return (_FILTERED,)
    return (None,) if pull.wanted is None else tuple(pull.wanted)
