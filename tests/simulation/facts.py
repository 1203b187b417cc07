"""The plain values of the model."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from reliable_mq.broker_core.names import SCHEDULE_TOPIC, TIMER_TOPIC, is_revive_topic
from reliable_mq.wire.pop_records import ACK, ACKS
from reliable_mq.wire.properties import (
    DELAY,
    POP_CK_OFFSET,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELETED_KEY,
    TIMER_DELIVER_MS,
    TIMER_DELIVERED_MS,
    TIMER_OUT_MS,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
)
from reliable_mq.wire.record import Record


class Violation(AssertionError):
    """The broker broke a promise."""


class Expected(msgspec.Struct, frozen=True):
    """A record that a request makes. With `waits_in` it waits there for its time, or its end."""

    topic: str
    queue_id: int
    body: bytes
    tag: str = ""
    level: int = 0
    reconsume_times: int = 0
    waits_in: str = ""

    def fits(self, entry: "Entry") -> bool:
        """Whether a record is this one."""
        place = (entry.topic, entry.queue_id)
        if self.waits_in:
            queue_id = self.level - 1 if self.level else 0
            if place != (self.waits_in, queue_id):
                return False
            place = (entry.real_topic, entry.real_queue_id)
        return (
            place == (self.topic, self.queue_id)
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
    due_ms: int  # of a message in the timers' topic, else 0; what pops note has none
    is_timed_delivery: bool
    half_offset: int  # of a committed message: where its half is
    unique_key: str
    deleted_key: str  # of a recall: the unique key of what it takes back
    checks: int  # of a half: how often it was asked for
    came_back: str  # of a popped message: its checkpoint, and its number there
    ends_ms: int  # of an acknowledgement: when its message would come back, by its handle
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


def first_kept(entries: Sequence[Entry], start: int) -> int:
    """Return the index of the first entry that has not expired when the log begins at `start`."""
    return bisect_left(entries, start, key=_log_offset)


def _log_offset(entry: Entry) -> int:
    return entry.log_offset


def entry_of(record: Record) -> Entry:
    """Return what the model keeps of a record."""
    properties = record.property_map()
    is_timed = record.topic == TIMER_TOPIC and not is_revive_topic(properties.get(REAL_TOPIC, ""))
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
        _slot_due_ms(properties, record.store_time_ms) if is_timed else 0,
        TIMER_DELIVERED_MS in properties
        and POP_CK_OFFSET not in properties
        and record.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC),
        record.prepared_transaction_offset,
        properties.get(UNIQ_KEY, ""),
        properties.get(TIMER_DELETED_KEY, ""),
        int(properties.get(TRANSACTION_CHECK_TIMES, "0")),
        properties.get(POP_CK_OFFSET, ""),
        ends_ms_of(properties),
    )


def ends_ms_of(properties: Mapping[str, str]) -> int:
    """Return when the message of an acknowledgement would come back, by its handle; else 0."""
    is_ack = properties.get(TAGS) in (ACK, ACKS)
    return int(properties.get(TIMER_DELIVER_MS, "0")) if is_ack else 0


def _slot_due_ms(properties: Mapping[str, str], stored_ms: int) -> int:
    """Return when a message in the timers' topic is due: in the second behind TIMER_OUT_MS.

    A clock that was set back may have stored it with a later time than it was asked for.
    """
    out_ms = int(properties[TIMER_OUT_MS])
    return min(max(due_ms(properties, stored_ms), out_ms + 1), out_ms + 1_000)


def due_ms(properties: Mapping[str, str], stored_ms: int) -> int:
    """Return when a message with these properties is due, 0 when it is not timed."""
    if TIMER_DELAY_SEC in properties:
        return stored_ms + int(properties[TIMER_DELAY_SEC]) * 1_000
    if TIMER_DELAY_MS in properties:
        return stored_ms + int(properties[TIMER_DELAY_MS])
    return int(properties.get(TIMER_DELIVER_MS, "0"))
