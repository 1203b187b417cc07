"""Which queue a message goes to: by its ordering key, or in turn, past the broker that failed."""

from collections.abc import Sequence
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

    def choose(self, queues: Sequence[MessageQueue], avoid_broker: str = "") -> MessageQueue:
        """Return the next queue, of a broker other than `avoid_broker` when there is one."""
        topic = queues[0].topic
        turn = self._next.get(topic, self._start)
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if queue.broker_name != avoid_broker:
                self._next[topic] = turn + step + 1
                return queue
        self._next[topic] = turn + 1
        return queues[turn % len(queues)]
