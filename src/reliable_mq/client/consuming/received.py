"""Stored records become deliveries.

A message that comes from a retry topic gets its own topic back. Bodies that other producers
compressed are unpacked here. Source: Apache RocketMQ `MessageDecoder`, `MessageSysFlag`.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from reliable_mq.client.flow import Flow, work
from reliable_mq.errors import RecordError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX, TOPIC_LENGTH_MAX
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_legal_name
from reliable_mq.wire.compression import decompress
from reliable_mq.wire.message_id import encode_offset_message_id, ledger_id
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
"""More bytes than this are unpacked where they hold up nobody else."""


def received(record: Record, queue: MessageQueue) -> ReceivedMessage:
    """Return the delivery of `record`, which was read from `queue`; its body is as it is stored.

    A message without an id of its producer has that of the place where it was first stored, also
    as a copy of a retry topic: it is one message, and its effect happens once. An id that no ledger
    can hold is known by its digest. A copy that names no topic as its own stays in the retry topic.
    """
    properties = record.property_map()
    host = record.store_host
    offset_id = encode_offset_message_id(
        host[:-4], int.from_bytes(host[-4:]), record.commit_log_offset
    )
    topic = record.topic
    message_id = properties.get(UNIQ_KEY)
    if not message_id and topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        # A copy: its place is new, but the broker that copied it noted the place of the first.
        message_id = properties.get(ORIGIN_MESSAGE_ID)
    if topic.startswith(RETRY_PREFIX):
        origin = properties.get(RETRY_TOPIC, "")
        topic = origin if is_legal_name(origin, TOPIC_LENGTH_MAX) else topic
    keys = properties.get(KEYS)
    return ReceivedMessage(
        topic=topic,
        body=record.body,
        tag=properties.get(TAGS, ""),
        keys=tuple(keys.split()) if keys else (),
        message_id=ledger_id(message_id or offset_id),
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
    """Return the body as it was before its producer compressed it, if it did.

    Raises:
        RecordError: when it is damaged, unpacks to more than `size_max` bytes, or was compressed by
            what is not installed here.
    """
    if not record.sys_flag & COMPRESSED:
        return record.body
    return decompress(record.body, record.sys_flag, size_max)


def unpack(
    records: Sequence[Record], size_max: int, enough: int
) -> Flow[tuple[int, dict[int, str]]]:
    """Unpack the bodies of `records` in their places, until that makes `enough` bytes.

    Returns how many are unpacked, from the first, and what is wrong with those that cannot be, by
    position; they stay as they are stored.
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
    """Return the messages with one of `tags`, all when it is empty.

    A broker compares hashes of tags, which may collide; here the text counts.
    """
    if not tags:
        return list(messages)
    return [message for message in messages if message.tag in tags]
