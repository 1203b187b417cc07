"""Stretches of the queues of one broker, as values and as they stand in JSON. Pure.

A queue is (topic, queue id); JSON has names alone, so there it is a name within a name.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

Value = TypeVar("Value")
Queue = tuple[str, int]
QueueRanges = Mapping[Queue, tuple[int, int]]
"""Queue -> the first offset, and the end, which is excluded."""
QueueEnds = Mapping[Queue, int]


def by_topic(queues: Mapping[Queue, Value]) -> dict[str, dict[str, Value]]:
    """Return what is known of queues as JSON has it."""
    found: dict[str, dict[str, Value]] = {}
    for (topic, queue_id), value in sorted(queues.items(), key=lambda item: item[0]):
        found.setdefault(topic, {})[str(queue_id)] = value
    return found


def by_queue(topics: Mapping[str, Mapping[str, Value]]) -> dict[Queue, Value]:
    """Return what `by_topic` has made as it was; a pair is a list in JSON, and stays one."""
    return {
        (topic, int(queue_id)): value
        for topic, queues in topics.items()
        for queue_id, value in queues.items()
    }


def behind(bounds: QueueRanges, ends: QueueEnds) -> dict[Queue, tuple[int, int]]:
    """Return what of queues lies behind the offsets up to which they were read.

    Args:
        bounds: what the queues hold.
        ends: up to where they were read; a queue that is not there is new.
    """
    return {
        queue: (max(begin, ends.get(queue, begin)), end) for queue, (begin, end) in bounds.items()
    }


def unread(bounds: QueueRanges, ends: QueueEnds) -> Iterator[tuple[Queue, int, int]]:
    """Yield what of each queue went before it was read: from an offset to another one, excluded."""
    for queue, (begin, _) in bounds.items():
        if begin > ends.get(queue, begin):
            yield queue, ends[queue], begin


def shortened(bounds: QueueRanges, ends: QueueEnds) -> Queue | None:
    """Return a queue that ends before the offset up to which it was read, None: there is none."""
    return next((queue for queue, (_, end) in bounds.items() if end < ends.get(queue, 0)), None)
