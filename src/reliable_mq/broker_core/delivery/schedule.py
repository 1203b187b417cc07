"""Delayed messages: each delay level is a queue of SCHEDULE_TOPIC_XXXX, in order of due time.

A delayed message keeps its real topic and queue in its properties. When it is due it is stored
again, there. The offset of a level is saved only as far as those second records are durable, so
that a crash delivers again rather than never.
Invariant L4: saved offset <= next offset of each level.
Source: Apache RocketMQ `ScheduleMessageService`; file `config/delayOffset.json`.
"""

from collections import deque
from collections.abc import Mapping

import msgspec

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.broker_core.store.message_store import MessageStore, StoredMessage
from reliable_mq.wire import fastjson
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import REAL_QUEUE_ID, REAL_TOPIC, TAGS
from reliable_mq.wire.record import Record

PATH = "config/delayOffset.json"
CHECK_INTERVAL_MS = 100
_DELIVERIES_MAX = 1_000  # of one level in one check, so that a burst does not stop everything


class DelaySchedule:
    """How far each delay level was delivered."""

    def __init__(self, delays_ms: Mapping[int, int]) -> None:
        self.delays_ms = dict(delays_ms)
        self._next: dict[int, int] = {}
        self._saved: dict[int, int] = {}
        self._in_flight: deque[tuple[int, int, int]] = deque()  # log end, level, next offset

    def level(self, wanted: int) -> int:
        """Return the level that is used for a wanted one: the highest when it is above."""
        return min(wanted, max(self.delays_ms))

    def deliver_due(self, store: MessageStore, now_ms: int) -> int:
        """Store the messages that are due at their real place; return how many."""
        return sum(self._deliver_level(store, level, now_ms) for level in self.delays_ms)

    def _deliver_level(self, store: MessageStore, level: int, now_ms: int) -> int:
        queue = store.queue(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return 0
        offset = max(self._next.get(level, 0), queue.first)
        count = 0
        for unit in queue.units(offset, _DELIVERIES_MAX):
            due_ms = unit.tags_code
            if now_ms < due_ms <= now_ms + self.delays_ms[level]:
                break
            record = store.read_record(unit.commit_log_offset)
            offset += 1
            if record:
                place = store.append(self._due_message(record), now_ms)
                self._in_flight.append((place.end, level, offset))
                count += 1
        self._next[level] = offset
        return count

    def _due_message(self, record: Record) -> StoredMessage:
        properties = record.property_map()
        return StoredMessage(
            topic=properties.get(REAL_TOPIC, record.topic),
            queue_id=int(properties.get(REAL_QUEUE_ID, "0")),
            body=record.body,
            properties=record.properties,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_time_ms=record.born_time_ms,
            born_host=record.born_host,
            reconsume_times=record.reconsume_times,
            tags_code=tags_code(properties.get(TAGS, "")),
        )

    def stored(self, end: int) -> None:
        """Note that everything before log offset `end` is durable."""
        while self._in_flight and self._in_flight[0][0] <= end:
            _, level, offset = self._in_flight.popleft()
            self._saved[level] = offset

    def dump(self) -> str:
        """Return the text of the file: only what is durable."""
        return fastjson.dumps({"offsetTable": self._saved}, indent=True).decode()

    def load(self, text: str) -> None:
        """Take the offsets from the text of the file.

        Raises:
            ValueError: when the text is no such file.
        """
        table = fastjson.loads(text).get("offsetTable", {})
        self._saved = {int(level): int(offset) for level, offset in table.items()}
        self._next = dict(self._saved)


def delayed(
    message: StoredMessage, level: int, properties: Mapping[str, str], due_ms: int
) -> tuple[StoredMessage, dict[str, str]]:
    """Return a message as it waits for its level, and its properties with the real place.

    Args:
        message: as it is to be delivered.
        level: 1 or more, in range.
        properties: the message's own.
        due_ms: when it is due; the unit keeps this instead of a tag hash.
    """
    waiting = {
        **properties,
        REAL_TOPIC: message.topic,
        REAL_QUEUE_ID: str(message.queue_id),
    }
    return (
        msgspec.structs.replace(
            message, topic=SCHEDULE_TOPIC, queue_id=level - 1, tags_code=due_ms
        ),
        waiting,
    )
