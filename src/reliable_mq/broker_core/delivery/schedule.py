"""Delayed messages: each delay level is a queue of SCHEDULE_TOPIC_XXXX, in order of due time.

A delayed message has its real topic and queue in its properties. When it is due, it is stored again
in that queue. The saved offset of a level advances only when these second records are durable. So
after a crash a message may be delivered twice, but is never lost.
Invariant L4: saved offset <= next offset of each level.
Source: Apache RocketMQ `ScheduleMessageService`; file `config/delayOffset.json`.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from reliable_mq.broker_core.delivery.followed_timers import VERSIONS_AHEAD
from reliable_mq.broker_core.names import SCHEDULE_TOPIC, can_wait
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.topics import DataVersion
from reliable_mq.decodable import decodable
from reliable_mq.errors import InvariantBroken, MessageRefused
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.message_facts import facts_in
from reliable_mq.wire import fastjson
from reliable_mq.wire.properties import REAL_QUEUE_ID, REAL_TOPIC
from reliable_mq.wire.record import Record

log = limited_log(__name__)

PATH = "config/delayOffset.json"
CHECK_INTERVAL_MS = 100
# Limits of one level in one check, so that a burst does not block the event loop.
_DELIVERIES_MAX = 1_000
_SIZE_MAX = 8 * 1024 * 1024


class DelaySchedule:
    """Delivery progress of each delay level. `is_dirty` is True after a change until a dump."""

    def __init__(self, delays_ms: Mapping[int, int]) -> None:
        self.delays_ms = dict(delays_ms)
        self._level_max = max(self.delays_ms)
        self._next: dict[int, int] = {}
        self._saved: dict[int, int] = {}
        self.in_flight: deque[tuple[int, int, int]] = deque()  # log end, level, next offset
        self._due_ms: dict[int, int] = {}  # due time of a level's first message, if it is known
        # After the clock was set back, by level: the new due time of all messages before an offset.
        self._set_back: dict[int, tuple[int, int]] = {}
        self._elsewhere: dict[int, int] = {}  # of `_saved`, what other masters got since the start
        self.version = DataVersion()
        self.is_dirty = False

    def invariants(self) -> None:
        """L4; see the head of the module."""
        for level, offset in self._saved.items():
            if not 0 <= offset <= self._next.get(level, offset):
                raise InvariantBroken(f"L4: level {level} saved {offset}, next {self._next[level]}")

    def level(self, wanted: int) -> int:
        """Return the delay level to use for a requested one: at most the highest level."""
        return min(wanted, self._level_max)

    def saved(self) -> Mapping[int, int]:
        """Return the durable offset of each level."""
        return self._saved

    def settle(self, store: MessageStore) -> None:
        """Move the offset of each level into the range of its queue, once the queues are known.

        A crash may cut a queue. An offset beyond its end would skip the next messages.
        """
        for level in self.delays_ms:
            queue = store.queue(SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                self._position(queue, level)
            else:
                self._next.pop(level, None)
                self._saved.pop(level, None)

    def deliver_due(self, store: MessageStore, now_ms: int) -> int:
        """Store the due messages in their real queues; return the number of messages."""
        count = 0
        for level in self.delays_ms:
            due_ms = self._due_ms.get(level)
            if due_ms is None or not self._is_early(level, due_ms, now_ms):
                count += self._deliver_level(store, level, now_ms)
        return count

    def _is_early(self, level: int, due_ms: int, now_ms: int) -> bool:
        """Whether a message must wait. If its due time is too far ahead, the clock was set back."""
        return now_ms < due_ms <= now_ms + self.delays_ms[level]

    def _due_again(self, level: int, offset: int, end: int, now_ms: int) -> int:
        """Return a new due time for the message at `offset`: its due time is too far ahead.

        The clock was set back, and the message may be new. So all messages that the queue has now,
        up to `end`, wait one delay from now. (Apache delivers them at once, new ones too.)
        """
        again_ms, until = self._set_back.get(level, (0, 0))
        if offset >= until or again_ms > now_ms + self.delays_ms[level]:
            again_ms, until = self._set_back[level] = now_ms + self.delays_ms[level], end
        return again_ms

    def _deliver_level(self, store: MessageStore, level: int, now_ms: int) -> int:
        queue = store.queue(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return 0
        offset = self._position(queue, level)
        count = size = 0
        self._due_ms.pop(level, None)
        for unit in queue.units(offset, _DELIVERIES_MAX):
            due_ms = unit.tags_code
            if due_ms > now_ms + self.delays_ms[level]:
                due_ms = self._due_again(level, offset, queue.end, now_ms)
            if self._is_early(level, due_ms, now_ms):
                self._due_ms[level] = due_ms  # later messages of the queue are due no earlier
                break
            if size > _SIZE_MAX:
                break
            record = store.reader.message(queue, offset)
            place = self._deliver(store, record, now_ms) if record else None  # may raise: no room
            offset += 1
            self._next[level] = offset
            if place:
                self.in_flight.append((place.end, level, offset))
                count += 1
                size += unit.size
        return count

    def due(
        self, store: MessageStore, level: int, offset: int, now_ms: int, most: int
    ) -> Iterator[tuple[int, StoredMessage | None]]:
        """Yield the due messages of a level, from a queue offset on, without delivering them.

        Args:
            store: it has them.
            level: delay level.
            offset: of the first message to look at.
            now_ms: the time.
            most: so many messages at most.

        Yields:
            The queue offset behind a message, and the message for its consumers; None: it is
            damaged, or must not be delivered.
        """
        queue = store.queue(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return
        offset = min(max(offset, queue.first), queue.end)
        for number, unit in enumerate(queue.units(offset, most), offset):
            due_ms = unit.tags_code
            if due_ms > now_ms + self.delays_ms[level]:
                due_ms = self._due_again(level, number, queue.end, now_ms)
            if self._is_early(level, due_ms, now_ms):
                return
            record = store.reader.message(queue, number)
            try:
                yield number + 1, _due_message(record) if record else None
            except MessageRefused as error:
                _drop(record, error)
                yield number + 1, None

    def next_of(self, level: int) -> int:
        """Return the queue offset of the next message of a level to deliver."""
        return self._next.get(level, 0)

    def begin_elsewhere(self) -> None:
        """Begin to deliver in the master's place; see `VERSIONS_AHEAD`."""
        self.version.counter += VERSIONS_AHEAD

    def delivered_elsewhere(self, level: int, offset: int, now_ms: int) -> None:
        """Note that other masters have all messages of a level before a queue offset."""
        self._elsewhere[level] = max(offset, self._elsewhere.get(level, 0))
        if offset > self._saved.get(level, 0):
            self._next[level] = max(self._next.get(level, 0), offset)
            self._saved[level] = offset
            self.version.advance(now_ms)
            self.is_dirty = True

    def take_over(self, text: str, now_ms: int) -> None:
        """Take over the progress of a master; what other masters got stays delivered.

        Raises:
            ValueError: see `load`.
        """
        self.load(text)
        for level, offset in self._elsewhere.items():
            self.delivered_elsewhere(level, offset, now_ms)

    def _position(self, queue: ConsumeQueue, level: int) -> int:
        """Return the next offset of a level; retention may have removed the head of its queue."""
        offset = min(max(self._next.get(level, 0), queue.first), queue.end)
        self._next[level] = offset
        self._saved[level] = min(self._saved.get(level, offset), offset)
        return offset

    def _deliver(self, store: MessageStore, record: Record, now_ms: int) -> AppendResult | None:
        """Store a message in its real queue; if that is not allowed, log and skip it."""
        try:
            return store.append(_due_message(record), now_ms)
        except MessageRefused as error:
            _drop(record, error)
            return None

    def stored(self, end: int) -> None:
        """Note that everything before log offset `end` is stored as the flush type promises."""
        while self.in_flight and self.in_flight[0][0] <= end:
            _, level, offset = self.in_flight.popleft()
            self._saved[level] = offset
            self.is_dirty = True

    def to_json(self) -> dict[str, Any]:
        """Return the table in the format of the file."""
        return {"dataVersion": msgspec.to_builtins(self.version), "offsetTable": self._saved}

    def dump(self) -> str:
        """Return the content of the file, with durable offsets only, and clear `is_dirty`."""
        self.is_dirty = False
        return fastjson.dumps(self.to_json(), indent=True).decode()

    def load(self, text: str) -> None:
        """Load the offsets from the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        file = msgspec.convert(fastjson.loads(text), _File, strict=False)
        self._saved = {level: max(0, offset) for level, offset in file.offset_table.items()}
        self._next = dict(self._saved)
        self.version = file.data_version


@decodable
class _File(msgspec.Struct, rename="camel"):
    offset_table: dict[int, int] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


def _drop(record: Record | None, error: MessageRefused) -> None:
    """Say that a message is skipped, because it is not allowed where it wants to go."""
    if record is not None:
        broker_events.DELAYED_MESSAGE_DROPPED.log(
            log,
            **facts_in(record.property_map()),
            log_offset=record.commit_log_offset,
            error=error,
        )


def _due_message(record: Record) -> StoredMessage:
    """Return a delayed message in the form for its consumers.

    Raises:
        MessageRefused: when its real place is missing or not allowed.
    """
    properties = record.property_map()
    topic, queue_id = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "0")
    if not (queue_id.isdecimal() and len(queue_id) < 11 and can_wait(topic, int(queue_id))):
        raise MessageRefused(f"queue {queue_id[:20]!r} of {topic!r} is not allowed as its target")
    return StoredMessage(
        topic=topic,
        queue_id=int(queue_id),
        body=record.body,
        properties=record.properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times,
    )


def delayed(
    message: StoredMessage, level: int, properties: Mapping[str, str]
) -> tuple[StoredMessage, dict[str, str]]:
    """Return the message as it waits in its level, and its properties with the real place.

    The unit in the level's queue holds the due time instead of the tag's hash.

    Args:
        message: the message to deliver later.
        level: delay level, from 1 to the highest.
        properties: the message's properties.

    Raises:
        MessageRefused: when the broker may not store a message in this topic later.
    """
    if not can_wait(message.topic, message.queue_id):
        raise MessageRefused(f"a message of topic[{message.topic}] cannot be delayed")
    waiting = {
        **properties,
        REAL_TOPIC: message.topic,
        REAL_QUEUE_ID: str(message.queue_id),
    }
    return msgspec.structs.replace(message, topic=SCHEDULE_TOPIC, queue_id=level - 1), waiting
