"""Queues as the appender sees them, and the units that one batch of the log brings them."""

import msgspec

from reliable_mq.wire.record_encode import topic_part


class Arrivals(msgspec.Struct):
    """The units of one queue in one batch of the log, from message `first` on."""

    topic: str
    queue_id: int
    first: int
    units: list[bytes]
    tags_codes: set[int]
    last_log_offset: int
    log_end: int
    size: int  # bytes of the records


class Dispatch(msgspec.Struct):
    """The new units of one batch of the log; due when the log is stored up to `end`."""

    end: int
    last_record: int
    last_time_ms: int
    arrivals: list[Arrivals]


class Lane:
    """One queue of one topic for appends: the next queue offset, and the units of this batch."""

    __slots__ = ("arrivals", "magic", "next", "queue_id", "topic", "topic_part")

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next = next_offset
        self.magic, self.topic_part = topic_part(topic.encode())
        self.arrivals: Arrivals | None = None  # in the current batch


LaneKey = tuple[str, int]
