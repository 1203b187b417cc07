"""Selects the queue of a message: by its ordering key, or round-robin without the failed broker.

Source of the hash called "java": Apache RocketMQ `SelectMessageQueueByHash`, Java's
`String.hashCode`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from reliable_mq.message import MessageQueue


def queue_of_key(
    ordering_key: str, queues: Sequence[MessageQueue], key_hash: str = "crc32"
) -> MessageQueue:
    """Return the queue of `ordering_key`: the same in every process and every run.

    Args:
        ordering_key: the key.
        queues: the queues of one topic, sorted, at least one.
        key_hash: one of `KEY_HASHES`; all producers of a topic must use the same.
    """
    return queues[KEY_HASHES[key_hash](ordering_key) % len(queues)]


def _crc32(ordering_key: str) -> int:
    return crc32(ordering_key.encode())


def _java(ordering_key: str) -> int:
    """Return the absolute value of the key's hash code in Java."""
    text = ordering_key.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(text), 2):
        value = (31 * value + (text[at] << 8 | text[at + 1])) & 0xFFFFFFFF
    return value if value < 1 << 31 else (1 << 32) - value


KEY_HASHES: Mapping[str, Callable[[str], int]] = {"crc32": _crc32, "java": _java}
"""Hash functions of ordering keys: ours, and the one of Apache's `SelectMessageQueueByHash`."""


TOPICS_MAX = 10_000
"""The next queue is remembered for this many topics. Above that, all topics start again."""


class RoundRobin:
    """Selects the queues of each topic round-robin.

    Args:
        start: number of the first queue; it should differ between clients that start together.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._next: dict[str, int] = {}

    def choose(
        self,
        queues: Sequence[MessageQueue],
        avoid_broker: str = "",
        rank: Callable[[str], float] | None = None,
    ) -> MessageQueue:
        """Return the next queue, of another broker than `avoid_broker` if possible.

        Args:
            queues: the queues of one topic, at least one.
            avoid_broker: the name of the broker that has just failed.
            rank: returns how slow a broker is; 0 is good. The queues of the best brokers are used.
        """
        topic = queues[0].topic
        turn = self._next.get(topic)
        if turn is None:
            turn = self._start
            if len(self._next) >= TOPICS_MAX:
                self._next.clear()
        if rank is None and not avoid_broker:
            self._next[topic] = turn + 1
            return queues[turn % len(queues)]
        best, best_rank = 0, math.inf
        for step in range(len(queues)):
            name = queues[(turn + step) % len(queues)].broker_name
            if name == avoid_broker:
                continue
            badness = rank(name) if rank is not None else 0.0
            if badness < best_rank:
                best, best_rank = step, badness
            if not badness:
                break
        self._next[topic] = turn + best + 1
        return queues[(turn + best) % len(queues)]
