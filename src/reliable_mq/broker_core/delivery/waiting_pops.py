"""Pops that found no message and wait for one, and requests that only wait for one.

They wait by topic, group and queue; -1 stands for all queues. A message wakes one pop of each
group, because one pop may take many messages; a pop that leaves some wakes the next one. A message
that comes back wakes a pop of its group, although it is in another topic.
Invariant L13: a waiting pop is answered exactly once; never after its connection is closed.
Source: Apache RocketMQ `PopLongPollingService`.
"""

from collections import Counter, deque
from itertools import repeat
from typing import Any

import msgspec

from reliable_mq.broker_core.delivery.long_poll import WaitingTable, Wanted
from reliable_mq.broker_core.filter.sql92 import Filter
from reliable_mq.broker_core.names import pop_retry_topic
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.command import Command

ALL_QUEUES = -1
OF_QUEUE_MAX, OF_ALL_MAX = 1_024, 100_000  # Apache's popPollingSize and maxPopPollingSize
OF_CONNECTION_MAX = 10_000
OF_SHARE_MAX = OF_ALL_MAX // 4  # of one group, and of one user
POLL_MAX_MS = 5 * 60 * 1_000  # Apache's clients and proxies ask for 20 seconds at most
_POP_SIZE = 1_500  # bytes of memory: measured, rounded up
_PART_SIZE = 450
_CHARACTER_SIZE = 4
_EARLY_MS = 50  # a wait ends so long before its time, so that the reply is in time
SIZE_MAX = 128 * 1024 * 1024
SIZE_OF_SHARE_MAX = SIZE_MAX // 4

_Key = tuple[str, int]  # group and queue
_Owner = tuple[str, str | int]


class WaitingPop(msgspec.Struct, eq=False):
    """One waiting request. `header` is its own; `wanted` as in `WaitingPull`.

    `size` is its memory in bytes, estimated.
    """

    connection: int
    address: str
    command: Command
    header: Any
    deadline_ms: int
    wanted: Wanted = None
    user: str = ""
    number: int = 0
    size: int = 0

    def __post_init__(self) -> None:
        texts = (each for each in msgspec.structs.astuple(self.header) if isinstance(each, str))
        size = _POP_SIZE + _CHARACTER_SIZE * sum(map(len, texts))
        if isinstance(self.wanted, Filter):
            size += _PART_SIZE * self.wanted.parts + _CHARACTER_SIZE * len(self.wanted.text)
        elif self.wanted is not None:
            size += _PART_SIZE * len(self.wanted)
        self.size = size

    @property
    def key(self) -> _Key:
        """The group and the queue that it waits for."""
        return self.header.consumer_group, max(self.header.queue_id, ALL_QUEUES)


class _Share(msgspec.Struct):
    """What waits for one connection, one group or one user: the number, and its memory."""

    count: int = 0
    size: int = 0


class WaitingPops(WaitingTable[WaitingPop]):
    """The waiting pops, also by topic, group and queue."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: deque[int] = deque()  # numbers; some may not wait any more
        # Numbers by topic and key; under the names of retry topics, too.
        self._by_topic: dict[str, dict[_Key, dict[int, None]]] = {}
        self._size = 0
        self._shares: dict[_Owner, _Share] = {}

    def invariants(self) -> None:
        """Check L13 as far as this table shows it: each waiting pop is in each index."""
        found = {n for keys in self._by_topic.values() for some in keys.values() for n in some}
        is_found = found | set(self.ready) >= self.waiting.keys() >= found
        if not (is_found and self._is_whole):
            raise InvariantBroken(f"L13: {len(self.waiting)} pops wait, {len(found)} are found")
        if self._size != sum(pop.size for pop in self.waiting.values()):
            raise InvariantBroken(f"L13: {self._size} bytes are counted")
        shares = Counter(owner for pop in self.waiting.values() for owner in _owners(pop))
        if shares != {owner: share.count for owner, share in self._shares.items()}:
            raise InvariantBroken(f"L13: {len(self._shares)} shares are counted, not {len(shares)}")

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many wait for a queue, or with -1 for all queues."""
        return len(self._by_topic.get(topic, {}).get((group, max(queue_id, ALL_QUEUES)), ()))

    def has_room(self, pop: WaitingPop) -> bool:
        """Whether one more may wait."""
        return (
            len(self.waiting) < OF_ALL_MAX
            and self.count(pop.header.topic, *pop.key) <= OF_QUEUE_MAX
            and self._count_of(pop.connection) < OF_CONNECTION_MAX
            and self._size + pop.size <= SIZE_MAX
            and all(map(self._has_share, _owners(pop), repeat(pop.size)))
        )

    def _has_share(self, owner: _Owner, size: int) -> bool:
        share = self._shares.get(owner)
        return share is None or (
            share.count < OF_SHARE_MAX and share.size + size <= SIZE_OF_SHARE_MAX
        )

    def hold(self, pop: WaitingPop) -> None:
        """Let a pop wait."""
        number = self._add(pop)
        for name in _names_of(pop):
            self._by_topic.setdefault(name, {}).setdefault(pop.key, {})[number] = None
        self._size += pop.size
        for owner in _owners(pop):
            share = self._shares.setdefault(owner, _Share())
            share.count += 1
            share.size += pop.size

    def arrived(self, topic: str, queue_id: int) -> None:
        """Make one pop of each group ready that waits for this queue."""
        keys = self._by_topic.get(topic)
        if not keys:
            return
        is_retry = topic.startswith("%")
        for key, some in list(keys.items()):
            if key[1] in (queue_id, ALL_QUEUES) or is_retry:
                self._make_ready(next(iter(some)))

    def wake(self, topic: str, group: str, queue_id: int) -> bool:
        """Make one pop of a group ready; return whether there is one."""
        for wanted in (queue_id, ALL_QUEUES):
            some = self._by_topic.get(topic, {}).get((group, wanted))
            if some:
                self._make_ready(next(iter(some)))
                return True
        return False

    def go_on(self, pop: WaitingPop) -> None:
        """Make a pop ready that waits: it has not looked at all messages yet."""
        self._make_ready(pop.number)

    def _make_ready(self, number: int) -> None:
        self._unlist(self.waiting[number])
        self.ready.append(number)

    def take_ready(self) -> WaitingPop | None:
        """Remove and return the pop that has been ready longest; None: there is none."""
        while self.ready:
            number = self.ready.popleft()
            if number in self.waiting:
                return self._remove(number)
        return None

    def forget(self, connection: int) -> None:
        """Remove the pops of a closed connection. One that was ready wakes the next instead."""
        for number in list(self._by_connection.get(connection, ())):
            pop = self.waiting[number]
            key = pop.key
            is_ready = number not in self._by_topic.get(pop.header.topic, {}).get(key, ())
            self._remove(number)
            if is_ready:
                self.wake(pop.header.topic, *key)

    def _unlist(self, pop: WaitingPop) -> None:
        for name in _names_of(pop):
            keys = self._by_topic.get(name, {})
            some = keys.get(pop.key, {})
            some.pop(pop.number, None)  # absent if the pop is ready
            if not some and keys.pop(pop.key, None) is not None and not keys:
                del self._by_topic[name]

    def _remove(self, number: int) -> WaitingPop:
        pop = super()._remove(number)
        self._unlist(pop)
        self._size -= pop.size
        for owner in _owners(pop):
            share = self._shares[owner]
            share.count -= 1
            share.size -= pop.size
            if not share.count:
                del self._shares[owner]
        return pop


def _owners(pop: WaitingPop) -> list[_Owner]:
    """Return who may have a share only: its group, its connection, and its user if it has one."""
    owners: list[_Owner] = [
        ("group", pop.header.consumer_group),
        ("connection", pop.connection),
    ]
    if pop.user:
        owners.append(("user", pop.user))
    return owners


def poll_end_ms(born_ms: int, poll_ms: int, now_ms: int) -> int:
    """Return when a request has waited for long enough; at most `POLL_MAX_MS` from now."""
    return min(born_ms + poll_ms, now_ms + POLL_MAX_MS) - _EARLY_MS


def _names_of(pop: WaitingPop) -> tuple[str, str, str]:
    """Return the topics whose messages a pop may get."""
    topic, group = pop.header.topic, pop.header.consumer_group
    retries = (pop_retry_topic(topic, group, is_v2=is_v2) for is_v2 in (False, True))
    return (topic, *retries)
