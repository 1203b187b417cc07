"""Pulls that found nothing and wait for a message.

Invariant L3: a waiting pull is answered exactly once: by a message, by its deadline, or never,
when its connection is gone. Source: Apache RocketMQ `PullRequestHoldService`.
"""

import heapq
from collections import defaultdict

import msgspec

from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader


class WaitingPull(msgspec.Struct, eq=False):
    """One held request; `deadline_ms` is when it is answered in any case."""

    connection: int
    command: Command
    header: PullMessageHeader
    deadline_ms: int
    tags: frozenset[int]  # the tag hashes that may answer it; empty for all
    is_waiting: bool = True

    def wants(self, tags_code: int) -> bool:
        """Whether a message with this tag may answer the pull."""
        return not self.tags or tags_code in self.tags


class WaitingPulls:
    """The held pulls, by queue and by deadline."""

    def __init__(self) -> None:
        self._by_queue: dict[tuple[str, int], list[WaitingPull]] = defaultdict(list)
        self._by_deadline: list[tuple[int, int, WaitingPull]] = []
        self._count = 0

    def hold(self, pull: WaitingPull) -> None:
        """Let a pull wait."""
        self._count += 1
        self._by_queue[pull.header.topic, pull.header.queue_id].append(pull)
        heapq.heappush(self._by_deadline, (pull.deadline_ms, self._count, pull))

    def arrived(self, topic: str, queue_id: int, tags_code: int) -> list[WaitingPull]:
        """Return the pulls that a message with this tag may answer; they wait no longer."""
        waiting = self._by_queue.get((topic, queue_id))
        if not waiting:
            return []
        awake = [pull for pull in waiting if pull.is_waiting and pull.wants(tags_code)]
        if awake:
            for pull in awake:
                pull.is_waiting = False
            self._prune(topic, queue_id)
        return awake

    def due(self, now_ms: int) -> list[WaitingPull]:
        """Return the pulls whose deadline has come; they wait no longer."""
        due: list[WaitingPull] = []
        while self._by_deadline and self._by_deadline[0][0] <= now_ms:
            pull = heapq.heappop(self._by_deadline)[2]
            if pull.is_waiting:
                pull.is_waiting = False
                self._prune(pull.header.topic, pull.header.queue_id)
                due.append(pull)
        return due

    def next_deadline_ms(self) -> int | None:
        """Return when `due` will have something, or None."""
        while self._by_deadline and not self._by_deadline[0][2].is_waiting:
            heapq.heappop(self._by_deadline)
        return self._by_deadline[0][0] if self._by_deadline else None

    def forget(self, connection: int) -> None:
        """Drop the pulls of a connection that closed."""
        for topic, queue_id in list(self._by_queue):
            for pull in self._by_queue[topic, queue_id]:
                if pull.connection == connection:
                    pull.is_waiting = False
            self._prune(topic, queue_id)

    def _prune(self, topic: str, queue_id: int) -> None:
        waiting = [pull for pull in self._by_queue[topic, queue_id] if pull.is_waiting]
        if waiting:
            self._by_queue[topic, queue_id] = waiting
        else:
            del self._by_queue[topic, queue_id]
