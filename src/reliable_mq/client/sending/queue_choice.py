"""Which queue a message goes to: by its ordering key, or in turn, past the broker that failed."""

import math
from collections.abc import Callable, Sequence
from zlib import crc32

from reliable_mq.message import MessageQueue


def queue_of_key(ordering_key: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the one queue of `ordering_key`: the same in every process and every run."""
    return queues[crc32(ordering_key.encode()) % len(queues)]


class Turns:
    """Goes through the queues of each topic in turn.

    Args:
        start: where the first turn begins; clients that start together should differ.
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
        """Return the next queue, of a broker other than `avoid_broker` when there is one.

        Args:
            queues: of one topic, at least one.
            avoid_broker: the name of the broker that failed just now.
            rank: says how bad a broker is, 0 is good. Of those left the least bad is taken.
        """
        topic = queues[0].topic
        turn = self._next.get(topic, self._start)
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
