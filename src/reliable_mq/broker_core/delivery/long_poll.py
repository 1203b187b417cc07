"""Pulls that found nothing and wait for a message.

A pull that is answered leaves nothing behind, and finding the ones to answer costs nothing for
those that wait for something else. Only the heap of deadlines forgets lazily: it is rebuilt when
more than half of it is over.
Invariant L3: a waiting pull is answered exactly once: by a message, by its deadline, or never,
when its connection is gone. Source: Apache RocketMQ `PullRequestHoldService`.
"""

import heapq

import msgspec

from reliable_mq.broker_core.filter.sql92 import Filter
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader

Wanted = frozenset[int] | Filter | None
"""Which messages a pull wants: those with one of these tag hashes, by a filter, or all."""

_HEAP_SIZE_MIN = 64  # below, a rebuild is not worth it
_FILTERED = "filtered"  # in the place of a tag hash: the filter is asked for every message


class WaitingPull(msgspec.Struct, eq=False):
    """One held request.

    `deadline_ms` is when it is answered in any case. `wanted` says what may answer it: tag hashes,
    a filter, None for every message. With a filter, `judged` is the first queue offset that it has
    not seen. `number` is given when it begins to wait.
    """

    connection: int
    address: str
    command: Command
    header: PullMessageHeader
    deadline_ms: int
    wanted: Wanted
    judged: int = 0
    number: int = 0


class WaitingPulls:
    """The held pulls: by number, by queue and tag, by connection, by deadline."""

    def __init__(self) -> None:
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
        wanting = {number for number, pull in self._waiting.items() if _keys(pull)}
        connected = {n for some in self._by_connection.values() for n in some}
        timed = {number for _, number in self._deadlines}
        if found != wanting or not connected == self._waiting.keys() <= timed:
            raise InvariantBroken(f"L3: {len(self._waiting)} pulls wait, {len(found)} are found")

    def hold(self, pull: WaitingPull) -> None:
        """Let a pull wait."""
        number = pull.number = self._last_number = self._last_number + 1
        self._waiting[number] = pull
        by_tag = self._by_queue.setdefault((pull.header.topic, pull.header.queue_id), {})
        for tag in _keys(pull):
            by_tag.setdefault(tag, {})[number] = None
        self._by_connection.setdefault(pull.connection, {})[number] = None
        heapq.heappush(self._deadlines, (pull.deadline_ms, number))

    def arrived(self, topic: str, queue_id: int, tags_code: int) -> list[WaitingPull]:
        """Return the pulls that a message with this tag may answer; they wait no longer."""
        by_tag = self._by_queue.get((topic, queue_id))
        if not by_tag:
            return []
        numbers = [*by_tag.get(None, ()), *by_tag.get(tags_code, ())]
        return [self._remove(number) for number in numbers]

    def filtered(self, topic: str, queue_id: int) -> list[WaitingPull]:
        """Return the pulls whose filter has to judge what came; they go on waiting."""
        by_tag = self._by_queue.get((topic, queue_id), {})
        return [self._waiting[number] for number in by_tag.get(_FILTERED, ())]

    def of_group(self, topic: str, queue_id: int, group: str) -> list[WaitingPull]:
        """Return the waiting pulls of a group; they go on waiting."""
        by_tag = self._by_queue.get((topic, queue_id), {})
        numbers = {number: None for some in by_tag.values() for number in some}
        pulls = [self._waiting[number] for number in numbers]
        return [pull for pull in pulls if pull.header.consumer_group == group]

    def release(self, pull: WaitingPull) -> None:
        """Let a pull wait no longer; the caller answers it."""
        self._remove(pull.number)

    def due(self, now_ms: int) -> list[WaitingPull]:
        """Return the pulls whose deadline has come; they wait no longer."""
        due: list[WaitingPull] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            number = heapq.heappop(self._deadlines)[1]
            if number in self._waiting:
                due.append(self._remove(number))
        return due

    def forget(self, connection: int) -> None:
        """Drop the pulls of a connection that closed."""
        for number in list(self._by_connection.get(connection, ())):
            self._remove(number)

    def _remove(self, number: int) -> WaitingPull:
        pull = self._waiting.pop(number)
        key = (pull.header.topic, pull.header.queue_id)
        by_tag = self._by_queue[key]
        for tag in _keys(pull):
            some = by_tag[tag]
            del some[number]
            if not some:
                del by_tag[tag]
        if not by_tag:
            del self._by_queue[key]
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
