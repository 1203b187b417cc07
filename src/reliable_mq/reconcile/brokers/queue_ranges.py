"""Offset ranges of the queues of one broker, as values and as JSON. Pure.

A queue is (topic, queue id). In JSON it is an object by topic, with objects by queue id.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

Value = TypeVar("Value")
Queue = tuple[str, int]
QueueRanges = Mapping[Queue, tuple[int, int]]
"""Queue -> (first offset, end). The end is excluded."""
QueueEnds = Mapping[Queue, int]


def by_topic(queues: Mapping[Queue, Value]) -> dict[str, dict[str, Value]]:
    """Return values by queue in the form for JSON."""
    found: dict[str, dict[str, Value]] = {}
    for (topic, queue_id), value in sorted(queues.items(), key=lambda item: item[0]):
        found.setdefault(topic, {})[str(queue_id)] = value
    return found


def by_queue(topics: Mapping[str, Mapping[str, Value]]) -> dict[Queue, Value]:
    """Return the inverse of `by_topic`. A pair is a list in JSON, and stays a list."""
    return {
        (topic, int(queue_id)): value
        for topic, queues in topics.items()
        for queue_id, value in queues.items()
    }


def behind(bounds: QueueRanges, ends: QueueEnds) -> dict[Queue, tuple[int, int]]:
    """Return the ranges of queues that are not read yet.

    Args:
        bounds: the ranges that the queues have.
        ends: the offsets up to which they were read. A queue without an offset is new.
    """
    return {
        queue: (max(begin, ends.get(queue, begin)), end) for queue, (begin, end) in bounds.items()
    }


def unread(bounds: QueueRanges, ends: QueueEnds) -> Iterator[tuple[Queue, int, int]]:
    """Yield (queue, begin, end) of ranges that were removed before they were read, end excluded."""
    for queue, (begin, _) in bounds.items():
        if begin > ends.get(queue, begin):
            yield queue, ends[queue], begin


def shortened(bounds: QueueRanges, ends: QueueEnds) -> Queue | None:
    """Return a queue that ends before the offset up to which it was read, or None."""
    return next((queue for queue, (_, end) in bounds.items() if end < ends.get(queue, 0)), None)
