"""Long polling: what waits, and pulls that found no message and wait for one.

An answered pull leaves nothing behind. Finding the pulls for a new message costs nothing for other
pulls. When a message arrives for pulls, they become ready; they are answered one after another, and
count as waiting until then.
Invariant L3: a waiting pull is answered exactly once, by a message or by its deadline; never after
its connection is closed. Source: Apache RocketMQ `PullRequestHoldService`.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from reliable_mq.broker_core.filter.sql92 import Filter
from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import (
    WAITING_PULLS_OF_CONNECTION_MAX,
    WAITING_PULLS_SIZE_MAX,
    WAITING_PULLS_SIZE_OF_CONNECTION_MAX,
)
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader

Wanted = frozenset[int] | Filter | None
"""The messages that a pull accepts: with one of these tag hashes, by a filter, or all (None)."""

_HEAP_SIZE_MIN = 64  # a smaller heap is not worth a rebuild
_FILTERED = "filtered"  # the key of pulls with a filter, which must judge every message

# Memory of waiting pulls, in bytes: measured, rounded up.
_PULL_SIZE = 1_000
_TAG_SIZE = 350
_FILTER_PART_SIZE = 450
# Processor time, in microseconds, to end a pull or to let it wait again.
_PULL_COST = 30
BYTES_FOR_COST = 1024


class PullLimits(msgspec.Struct, frozen=True):
    """Limits of waiting pulls: their number per connection, and their memory in bytes."""

    count_of_one: int = WAITING_PULLS_OF_CONNECTION_MAX
    size_of_one: int = WAITING_PULLS_SIZE_OF_CONNECTION_MAX
    size_of_all: int = WAITING_PULLS_SIZE_MAX


class WaitingPull(msgspec.Struct, eq=False):
    """One waiting pull request.

    `deadline_ms` is its deadline. `wanted` says which messages may answer it: tag hashes, a filter,
    or None for every message. With a filter, `judged` is the first queue offset that the filter has
    not seen. `user` has signed it; "": nobody. `hold` sets `number`. `size` is its memory in bytes.
    `cost` is the work to end it, without its reply, in microseconds: each tag entry is removed. It
    waits under its `keys`.
    """

    connection: int
    address: str
    command: Command
    header: PullMessageHeader
    deadline_ms: int
    wanted: Wanted
    judged: int = 0
    number: int = 0
    user: str = ""

    size: int = 0
    cost: int = 0
    keys: tuple[int | str | None, ...] = (None,)

    def __post_init__(self) -> None:
        wanted, header = self.wanted, self.header
        size = (
            _PULL_SIZE + 4 * len(header.subscription or "") + 4 * len(header.expression_type or "")
        )
        if isinstance(wanted, Filter):
            size += _FILTER_PART_SIZE * wanted.parts + 4 * len(wanted.text)
            self.keys = (_FILTERED,)
        elif wanted is not None:
            size += _TAG_SIZE * len(wanted)
            self.keys = tuple(wanted)
        self.size = size
        self.cost = _PULL_COST + size // BYTES_FOR_COST


class Waits(Protocol):
    """A request that waits: `WaitingTable` sets its number."""

    connection: int
    deadline_ms: int
    number: int


W = TypeVar("W", bound=Waits)


class WaitingTable(Generic[W]):
    """What waits: by number, by connection, by deadline.

    Entries of the deadline heap are removed lazily: the heap is rebuilt when more than half of its
    entries are stale.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, W] = {}
        self._by_connection: dict[int, dict[int, None]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._last_number = 0

    @property
    def _is_whole(self) -> bool:
        """Whether all that waits is found by its connection and by its deadline."""
        connected = {n for some in self._by_connection.values() for n in some}
        timed = {number for _, number in self._deadlines}
        return connected == self.waiting.keys() <= timed

    def _count_of(self, connection: int) -> int:
        return len(self._by_connection.get(connection, ()))

    def _add(self, one: W) -> int:
        """Let a request wait; return its number."""
        number = one.number = self._last_number = self._last_number + 1
        self.waiting[number] = one
        self._by_connection.setdefault(one.connection, {})[number] = None
        heapq.heappush(self._deadlines, (one.deadline_ms, number))
        return number

    def take_due(self, now_ms: int) -> W | None:
        """Remove and return the request with the oldest passed deadline; None: there is none."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            number = heapq.heappop(self._deadlines)[1]
            if number in self.waiting:
                return self._remove(number)
        return None

    def forget(self, connection: int) -> None:
        """Remove the requests of a closed connection."""
        for number in list(self._by_connection.get(connection, ())):
            self._remove(number)

    def _remove(self, number: int) -> W:
        one = self.waiting.pop(number)
        of_connection = self._by_connection[one.connection]
        del of_connection[number]
        if not of_connection:
            del self._by_connection[one.connection]
        if len(self._deadlines) > 2 * len(self.waiting) + _HEAP_SIZE_MIN:
            self._deadlines = [(each.deadline_ms, n) for n, each in self.waiting.items()]
            heapq.heapify(self._deadlines)
        return one


class WaitingPulls(WaitingTable[WaitingPull]):
    """The waiting pulls, also by queue and tag.

    Args:
        limits: how many may wait, and their memory; they may change, and a lower one ends no pull.
    """

    def __init__(self, limits: PullLimits | None = None) -> None:
        super().__init__()
        self.limits = limits or PullLimits()
        self.refused = 0  # pulls since the start, because too many waited
        self._size = 0
        self._sizes: dict[int, int] = {}  # by connection
        self.ready: deque[dict[int, None]] = deque()  # numbers; some may not wait any more
        self._by_queue: dict[tuple[str, int], dict[int | str | None, dict[int, None]]] = {}

    def __len__(self) -> int:
        return len(self.waiting)

    def invariants(self) -> None:
        """Check L3 as far as this table shows it: each waiting pull is in each index."""
        found = {n for by_tag in self._by_queue.values() for some in by_tag.values() for n in some}
        found |= {n for some in self.ready for n in some if n in self.waiting}
        wanting = {number for number, pull in self.waiting.items() if pull.keys}
        if found != wanting or not self._is_whole:
            raise InvariantBroken(f"L3: {len(self.waiting)} pulls wait, {len(found)} are found")
        size = sum(pull.size for pull in self.waiting.values())
        if not size == self._size == sum(self._sizes.values()):
            raise InvariantBroken(f"L3: {size} bytes of pulls wait, {self._size} are counted")

    def has_room(self, pull: WaitingPull) -> bool:
        """Whether one more pull may wait within the limits."""
        limits, connection = self.limits, pull.connection
        return (
            self._count_of(connection) < limits.count_of_one
            and self._sizes.get(connection, 0) + pull.size <= limits.size_of_one
            and self._size + pull.size <= limits.size_of_all
        )

    def hold(self, pull: WaitingPull) -> None:
        """Add a waiting pull."""
        number = self._add(pull)
        by_tag = self._by_queue.setdefault((pull.header.topic, pull.header.queue_id), {})
        for tag in pull.keys:
            by_tag.setdefault(tag, {})[number] = None
        self._count(pull.connection, pull.size)

    def _count(self, connection: int, size: int) -> None:
        self._size += size
        of_connection = self._sizes.get(connection, 0) + size
        if of_connection:
            self._sizes[connection] = of_connection
        else:
            del self._sizes[connection]

    def arrived(self, topic: str, queue_id: int, tags_codes: Iterable[int]) -> None:
        """Make the pulls ready that may accept a message with one of these tag hashes."""
        key = (topic, queue_id)
        by_tag = self._by_queue.get(key)
        if by_tag is None:
            return
        for tag in (None, _FILTERED, *tags_codes):
            some = by_tag.pop(tag, None)
            if some:
                self.ready.append(some)
        if not by_tag:
            del self._by_queue[key]

    def take_ready(self) -> WaitingPull | None:
        """Remove and return the pull that has been ready longest; None without ready pulls.

        The caller lets the filter of a pull judge the new messages. If the filter accepts none, the
        caller holds the pull again.
        """
        while self.ready:
            some = self.ready[0]
            number = next(iter(some))
            del some[number]
            if not some:
                self.ready.popleft()
            if number in self.waiting:
                return self._remove(number)
        return None

    def of_group(self, topic: str, queue_id: int, group: str) -> list[WaitingPull]:
        """Return the waiting pulls of a group; they continue to wait."""
        by_tag = self._by_queue.get((topic, queue_id), {})
        numbers = {number: None for some in by_tag.values() for number in some}
        pulls = [self.waiting[number] for number in numbers]
        return [pull for pull in pulls if pull.header.consumer_group == group]

    def release(self, pull: WaitingPull) -> None:
        """Remove a pull; the caller answers it."""
        self._remove(pull.number)

    def expire(self, pull: WaitingPull) -> None:
        """Make a waiting pull due at once."""
        pull.deadline_ms = 0
        heapq.heappush(self._deadlines, (0, pull.number))

    def _remove(self, number: int) -> WaitingPull:
        pull = super()._remove(number)
        key = (pull.header.topic, pull.header.queue_id)
        by_tag = self._by_queue.get(key, {})
        for tag in pull.keys:
            some = by_tag.get(tag, {})
            some.pop(number, None)  # absent if the pull is ready
            if not some:
                by_tag.pop(tag, None)
        if not by_tag:
            self._by_queue.pop(key, None)
        self._count(pull.connection, -pull.size)
        return pull
