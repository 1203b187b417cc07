"""Stored records become deliveries.

A message that comes from a retry topic gets its own topic back. Bodies that other producers
compressed are unpacked here. Source: Apache RocketMQ `MessageDecoder`, `MessageSysFlag`.
"""

import zlib
from collections.abc import Iterable

from reliable_mq.client.consuming.subscription import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    is_legal_name,
)
from reliable_mq.errors import RecordError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX, TOPIC_LENGTH_MAX
from reliable_mq.message import MessageQueue, ReceivedMessage
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

_COMPRESSION_MASK = 0x700
_ZLIB_KINDS = (0x000, 0x300)  # 0: clients from before there was a choice
_NAMES = {0x100: "LZ4", 0x200: "ZSTD"}


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


def unpacked(record: Record) -> bytes:
    """Return the body as it was before its producer compressed it, if it did.

    Raises:
        RecordError: when it is compressed by something else than zlib, damaged, or unpacks to more
            than a message may hold.
    """
    if not record.sys_flag & COMPRESSED:
        return record.body
    kind = record.sys_flag & _COMPRESSION_MASK
    if kind not in _ZLIB_KINDS:
        raise RecordError(f"a body compressed with {_NAMES.get(kind, kind)} cannot be unpacked")
    try:
        body = zlib.decompressobj().decompress(record.body, MESSAGE_BODY_SIZE_MAX + 1)
    except zlib.error as error:
        raise RecordError(f"a compressed body is damaged: {error}") from error
    if len(body) > MESSAGE_BODY_SIZE_MAX:
        raise RecordError(f"a compressed body unpacks to more than {MESSAGE_BODY_SIZE_MAX} bytes")
    return body


def with_tags(messages: Iterable[ReceivedMessage], tags: frozenset[str]) -> list[ReceivedMessage]:
    """Return the messages with one of `tags`, all when it is empty.

    A broker compares hashes of tags, which may collide; here the text counts.
    """
    if not tags:
        return list(messages)
    return [message for message in messages if message.tag in tags]
