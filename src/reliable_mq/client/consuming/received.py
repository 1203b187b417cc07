"""Converts stored records into deliveries.

A message from a retry topic gets its original topic back. Bodies that the producer compressed are
decompressed. Source: Apache RocketMQ `MessageDecoder`, `MessageSysFlag`.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from reliable_mq.client.flow import Flow, work
from reliable_mq.errors import RecordError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX, TOPIC_LENGTH_MAX
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_legal_name
from reliable_mq.wire.compression import decompress
from reliable_mq.wire.message_id import is_usual_id, ledger_id
from reliable_mq.wire.properties import (
    KEYS,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
)
from reliable_mq.wire.record import COMPRESSED, Record

_WORK_SIZE_MIN = 16 * 1024
"""Larger bodies are decompressed in a thread, so that other work is not blocked."""


def received(record: Record, queue: MessageQueue) -> ReceivedMessage:
    """Return the delivery of a `record` read from `queue`; its body is as stored."""
    return delivery(record, queue, record.property_map(), record.offset_message_id())


def delivery(
    record: Record, queue: MessageQueue, properties: dict[str, str], offset_id: str
) -> ReceivedMessage:
    """Return the delivery of a `record` with these properties and this offset message id.

    A message without a producer's id gets the id of the place where it was first stored, also as a
    copy in a retry topic: it is one message, and its effect happens once. If no ledger can store an
    id, its digest replaces it. A copy without an original topic stays in the retry topic.
    """
    topic = record.topic
    message_id = properties.get(UNIQ_KEY)
    if not message_id and topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        # A copy has a new place, but the broker that copied it recorded the first place.
        message_id = properties.get(ORIGIN_MESSAGE_ID)
    if topic.startswith(RETRY_PREFIX):
        origin = properties.get(RETRY_TOPIC, "")
        topic = origin if is_legal_name(origin, TOPIC_LENGTH_MAX) else topic
    keys = properties.get(KEYS)
    message_id = message_id or offset_id
    return ReceivedMessage(
        topic=topic,
        body=record.body,
        tag=properties.get(TAGS, ""),
        keys=tuple(keys.split()) if keys else (),
        message_id=message_id if is_usual_id(message_id) else ledger_id(message_id),
        ordering_key=properties.get(SHARDING_KEY, ""),
        properties=properties,
        queue=queue,
        queue_offset=record.queue_offset,
        commit_log_offset=record.commit_log_offset,
        offset_message_id=offset_id,
        born_time_ms=record.born_time_ms,
        store_time_ms=record.store_time_ms,
        reconsume_times=record.reconsume_times,
    )


def unpacked(record: Record, size_max: int = MESSAGE_BODY_SIZE_MAX) -> bytes:
    """Return the decompressed body; unchanged if it was not compressed.

    Raises:
        RecordError: when it is damaged, is larger than `size_max` bytes when decompressed, or
            needs a library that is not installed.
    """
    if not record.sys_flag & COMPRESSED:
        return record.body
    return decompress(record.body, record.sys_flag, size_max)


def unpack(
    records: Sequence[Record], size_max: int, enough: int
) -> Flow[tuple[int, dict[int, str]]]:
    """Decompress the bodies of `records` in place, up to `enough` bytes.

    Returns the number of decompressed records, counted from the first, and the errors by position.
    Records with an error stay as stored.
    """
    job = partial(_unpack, records, size_max, enough)
    packed = sum(len(record.body) for record in records if record.sys_flag & COMPRESSED)
    if packed < _WORK_SIZE_MIN:
        return job()
    return (yield from work(job))


def _unpack(records: Sequence[Record], size_max: int, enough: int) -> tuple[int, dict[int, str]]:
    faults: dict[int, str] = {}
    size = 0
    for at, record in enumerate(records):
        if size >= enough:
            return at, faults
        try:
            record.body = unpacked(record, size_max)
        except RecordError as error:
            faults[at] = str(error)
        size += len(record.body)
    return len(records), faults


def with_tags(messages: Iterable[ReceivedMessage], tags: frozenset[str]) -> list[ReceivedMessage]:
    """Return the messages with one of `tags`; all when `tags` is empty.

    A broker compares only hashes of tags, which may collide. So the text is compared here.
    """
    if not tags:
        return list(messages)
    return [message for message in messages if message.tag in tags]
