"""Timed messages: their properties, their due time, and the record that is stored at that time.

Receives stored records. Returns due times, and stores messages then. Keeps no state. A message is
due in the slot after TIMER_OUT_MS: at the earliest one millisecond after TIMER_OUT_MS, at the
latest when the next slot begins. Apache's broker delivers it when the next slot begins.
Source: Apache RocketMQ `TimerMessageStore`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from reliable_mq.broker_core.names import TIMER_TOPIC, can_wait, is_revive_topic
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.consume_queue import QueueUnit
from reliable_mq.broker_core.store.log_walk import sound_records
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.timer_log import TimerEntry
from reliable_mq.broker_core.store.unit_reading import read_unit
from reliable_mq.errors import MessageRefused
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.message_facts import facts_in
from reliable_mq.wire.properties import (
    POP_CK_OFFSET,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELETED_KEY,
    TIMER_DELIVER_MS,
    TIMER_DELIVERED_MS,
    TIMER_OUT_MS,
    TIMER_ROLLS,
    TIMER_TAKEN_MS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from reliable_mq.wire.record import Record, decode_record

log = limited_log(__name__)

_RECORDS_AT_ONCE = 2_000
_DIGITS_MAX = 18  # so that the number fits into a Java long
_DELIVERED = f"{TIMER_DELIVERED_MS}\x01".encode()
_CAME_BACK = f"{POP_CK_OFFSET}\x01".encode()


class TimedIdentity(NamedTuple):
    """Identifies one delivery of one timed message, both in the timers and in the log."""

    topic: str
    queue_id: int
    unique_key: str
    out_ms: int
    rolls: int
    is_roll: bool


class TimedMessage(NamedTuple):
    """A waiting message: its record, its real place, its slot, and its exact due time."""

    record: Record
    properties: dict[str, str]
    topic: str
    queue_id: int
    out_ms: int
    due_ms: int

    @property
    def place(self) -> int:
        """The log offset of its record."""
        return self.record.commit_log_offset

    @property
    def size(self) -> int:
        """The bytes of its record."""
        return self.record.size

    @property
    def deleted_key(self) -> str:
        """The key of the message that this one recalls; "" for an ordinary message."""
        return self.properties.get(TIMER_DELETED_KEY, "")

    @property
    def own_keys(self) -> tuple[str, str]:
        """The keys by which a recall may name this message."""
        unique_key = self.properties.get(UNIQ_KEY, "")
        return unique_key, delete_key(self.topic, unique_key, with_topic=True)

    def identity(self, *, is_roll: bool) -> TimedIdentity:
        """Return the identity of its delivery, or of its next round in the wheel."""
        rolls = _number(self.properties, TIMER_ROLLS)
        key = _key_of(self.properties)
        return TimedIdentity(self.topic, self.queue_id, key, self.out_ms, rolls, is_roll)


def identity_of_popped(place: int, index: int) -> TimedIdentity:
    """Return the identity of a popped message that came back.

    Args:
        place: log offset of its checkpoint.
        index: of the message there.
    """
    return TimedIdentity("", index, str(place), 0, 0, is_roll=False)


def delete_key(topic: str, unique_key: str, *, with_topic: bool) -> str:
    """Return the key that names a message in a recall."""
    return f"{topic}+{unique_key}" if with_topic else unique_key


def read_timed(record: Record | None, precision_ms: int) -> TimedMessage | None:
    """Return the timed message in a record of the timers' topic; None if it is not valid.

    The record may come from Apache's broker. That broker lets clients send to this topic and trusts
    their properties. So the message may name any place, even an illegal topic.
    """
    if record is None or record.topic != TIMER_TOPIC:
        return None
    properties = record.property_map()
    try:
        out_ms = int(properties[TIMER_OUT_MS])
        queue_id = int(properties[REAL_QUEUE_ID])
        topic = properties[REAL_TOPIC]
        wanted_ms = _wanted_ms(properties, record.store_time_ms)
    except (KeyError, ValueError):
        return None
    if not (can_wait(topic, queue_id) or (is_revive_topic(topic) and queue_id >= 0)):
        return None
    due_ms = min(max(wanted_ms, out_ms + 1), out_ms + precision_ms)
    return TimedMessage(record, properties, topic, queue_id, out_ms, due_ms)


def timed_of(
    store: MessageStore, entry: TimerEntry | None, precision_ms: int
) -> TimedMessage | None:
    """Return the message of an entry; None when it is removed or is not a timed message."""
    if entry is None:
        return None
    record = read_unit(store.log, QueueUnit(entry.commit_log_offset, entry.size, 0))
    timed = read_timed(record, precision_ms)
    if timed is None:
        broker_events.TIMED_MESSAGE_MISSING.log(log, log_offset=entry.commit_log_offset)
    return timed


def _wanted_ms(properties: Mapping[str, str], stored_ms: int) -> int:
    """Return the requested time; a delay counts from the time of the first store."""
    if _number(properties, TIMER_ROLLS) and TIMER_DELIVER_MS in properties:
        return int(properties[TIMER_DELIVER_MS])
    if TIMER_DELAY_SEC in properties:
        return stored_ms + int(properties[TIMER_DELAY_SEC]) * 1000
    if TIMER_DELAY_MS in properties:
        return stored_ms + int(properties[TIMER_DELAY_MS])
    return int(properties[TIMER_DELIVER_MS])


def slot_of_round(
    slot_ms: int, taken_ms: int, free_end_ms: int, roll_slots: int, precision_ms: int
) -> int:
    """Return the slot after which a message enters the wheel again, on the way to its own.

    Args:
        slot_ms: its own slot.
        taken_ms: when it enters the wheel.
        free_end_ms: no slot at this time or later is free: the timers are far behind.
        roll_slots: after so many slots it enters the wheel again.
        precision_ms: duration of a slot, in milliseconds.
    """
    beyond = (slot_ms - taken_ms) // precision_ms - roll_slots
    if beyond >= 0:
        slots = roll_slots // 2 if beyond < roll_slots // 3 else roll_slots
        slot_ms = taken_ms + slots * precision_ms
    return min(slot_ms, free_end_ms - precision_ms)


def _key_of(properties: Mapping[str, str]) -> str:
    """Return the key of a message; a recall has that of its message, and its own is another."""
    unique_key, deleted_key = properties.get(UNIQ_KEY, ""), properties.get(TIMER_DELETED_KEY)
    return unique_key if deleted_key is None else f"{unique_key} takes {deleted_key} back"


def _number(properties: Mapping[str, str], name: str) -> int:
    text = properties.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else 0


def message_when_due(
    timed: TimedMessage, taken_ms: int, now_ms: int, *, is_roll: bool
) -> StoredMessage:
    """Return the message to store at the due time: the message itself, or its next round.

    Args:
        timed: the message.
        taken_ms: when it entered the wheel.
        now_ms: the time.
        is_roll: whether it is due beyond the roll window and so enters the wheel again.
    """
    record = timed.record
    properties = {**timed.properties, TIMER_TAKEN_MS: str(taken_ms)}
    if is_roll:
        properties[TIMER_ROLLS] = str(_number(properties, TIMER_ROLLS) + 1)
        properties.setdefault(TIMER_DELIVER_MS, str(timed.due_ms))
    properties[TIMER_DELIVERED_MS] = str(now_ms)
    try:
        stored_properties = encode_properties(properties)
    except MessageRefused:  # no room for the extra properties; the message matters more
        stored_properties = record.properties
    return StoredMessage(
        topic=TIMER_TOPIC if is_roll else timed.topic,
        queue_id=0 if is_roll else timed.queue_id,
        body=record.body,
        properties=stored_properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times,
    )


def store_when_due(
    store: MessageStore, timed: TimedMessage, taken_ms: int, now_ms: int, *, is_roll: bool
) -> None:
    """Store a message at its due time, or for its next round; see `message_when_due`.

    Raises:
        StoreError: no room for the log's next file.
    """
    message = message_when_due(timed, taken_ms, now_ms, is_roll=is_roll)
    try:
        store.append(message, now_ms)
    except MessageRefused as error:
        facts = facts_in(decode_properties(message.properties))
        broker_events.TIMED_MESSAGE_DROPPED.log(log, **facts, log_offset=timed.place, error=error)


def deliveries_since(store: MessageStore, log_offset: int) -> tuple[Counter[TimedIdentity], int]:
    """Return the deliveries of the timers from a log offset on, and the time of the last one.

    After a crash between a delivery and its checkpoint, only the log knows the delivery.

    Args:
        store: the log and its queues.
        log_offset: where a record begins.
    """
    found: Counter[TimedIdentity] = Counter()
    times = list(search_deliveries(store, log_offset, found))
    return found, times[-1]


def search_deliveries(
    store: MessageStore, log_offset: int, found: Counter[TimedIdentity]
) -> Iterator[int]:
    """Do the same in slices: add deliveries to `found`, and yield the time of the last one."""
    last_ms = count = 0
    start = max(log_offset, store.log.start)
    for place in sound_records(store.log, start):
        count += 1
        if count % _RECORDS_AT_ONCE == 0:
            yield last_ms
        data = bytes(place.buffer[place.at : place.at + place.size])
        if _DELIVERED not in data and _CAME_BACK not in data:
            continue
        record = decode_record(data)
        properties = record.property_map()
        last_ms = max(last_ms, record.store_time_ms)
        if POP_CK_OFFSET in properties and record.born_host == record.store_host:
            checkpoint, _, index = properties[POP_CK_OFFSET].partition(" ")
            if checkpoint.isdecimal() and index.isdecimal():
                found[identity_of_popped(int(checkpoint), int(index))] += 1
        if TIMER_DELIVERED_MS not in properties:
            continue
        rolls = _number(properties, TIMER_ROLLS)
        key, out_ms = _key_of(properties), _number(properties, TIMER_OUT_MS)
        if record.topic == TIMER_TOPIC:
            topic, queue_id = properties.get(REAL_TOPIC, ""), _number(properties, REAL_QUEUE_ID)
            found[TimedIdentity(topic, queue_id, key, out_ms, rolls - 1, is_roll=True)] += 1
        else:
            found[
                TimedIdentity(record.topic, record.queue_id, key, out_ms, rolls, is_roll=False)
            ] += 1
    yield last_ms
