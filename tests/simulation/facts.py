"""The plain values of the model."""

import msgspec

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.wire.properties import DELAY, REAL_QUEUE_ID, REAL_TOPIC, TAGS
from reliable_mq.wire.record import Record


class Violation(AssertionError):
    """The broker broke a promise."""


class Expected(msgspec.Struct, frozen=True):
    """A record that a request makes. A `level` above 0: it waits for its time."""

    topic: str
    queue_id: int  # -1: any
    body: bytes
    tag: str = ""
    level: int = 0
    reconsume_times: int = 0

    def fits(self, entry: "Entry") -> bool:
        """Whether a record is this one."""
        place: tuple[object, ...] = (entry.topic, entry.queue_id, 0)
        if entry.topic == SCHEDULE_TOPIC:
            place = (entry.real_topic, entry.real_queue_id, entry.queue_id + 1)
        wanted = (self.topic, place[1] if self.queue_id < 0 else self.queue_id, self.level)
        return (
            place == wanted
            and entry.body == self.body
            and entry.tag == self.tag
            and entry.reconsume_times == self.reconsume_times
        )


class Entry(msgspec.Struct, eq=False):
    """A record of the log, as far as the model looks at it."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    tag: str
    log_offset: int
    log_end: int
    store_time_ms: int
    born_time_ms: int
    reconsume_times: int
    level: int
    real_topic: str
    real_queue_id: int
    number: int = -1  # in the log
    shown_ms: int = 0

    def is_same(self, other: "Entry") -> bool:
        """Whether two readings of the log found the same here."""
        return (self.topic, self.queue_id, self.queue_offset, self.body, self.log_offset) == (
            other.topic,
            other.queue_id,
            other.queue_offset,
            other.body,
            other.log_offset,
        )

    def __repr__(self) -> str:
        """Return a line for the reader of a violation."""
        return (
            f"{self.topic}/{self.queue_id}#{self.queue_offset} {self.body[:12]!r} "
            f"at {self.log_offset}"
        )


class Queue(msgspec.Struct):
    """The messages of one queue; the first `visible` of them show."""

    entries: list[Entry] = msgspec.field(default_factory=list)
    visible: int = 0


def entry_of(record: Record) -> Entry:
    """Return what the model keeps of a record."""
    properties = record.property_map()
    return Entry(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.body,
        properties.get(TAGS, ""),
        record.commit_log_offset,
        record.commit_log_offset + record.size,
        record.store_time_ms,
        record.born_time_ms,
        record.reconsume_times,
        int(properties.get(DELAY, "0")),
        properties.get(REAL_TOPIC, ""),
        int(properties.get(REAL_QUEUE_ID, "0")),
    )
