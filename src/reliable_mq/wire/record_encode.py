"""Encoding of a stored record, and the sizes of records.

`record` documents the format. A record contains its own log offset. So the broker computes the
topic part and the sizes before it encodes a record.
"""

import struct
from collections.abc import Sequence

from isal.isal_zlib import crc32

from reliable_mq.errors import MessageRefused
from reliable_mq.limits import PROPERTIES_SIZE_MAX, RECORD_SIZE_MAX, RETRY_TOPIC_LENGTH_MAX
from reliable_mq.wire.record import (
    CRC_MASK,
    HOST_V6_FLAGS,
    HOSTLESS_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_V1_LENGTH_MAX,
    Record,
    fixed_for,
)

_I16 = struct.Struct(">h")


def encode_record(record: Record) -> bytes:
    """Return the stored bytes. Size, checksum and host bits are computed; given values are ignored.

    Raises:
        MessageRefused: when the record breaks a limit of the format, so that no reader could decode
            it.
        UsageError: when a host is not packed.
    """
    magic, topic = topic_part(record.topic.encode())
    return encode_stored(
        magic,
        topic,
        record_size(topic, record.body, record.properties, record.born_host, record.store_host),
        record.body,
        record.properties,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.commit_log_offset,
        record.sys_flag,
        record.born_time_ms,
        record.born_host,
        record.store_time_ms,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )


def topic_part(topic: bytes) -> tuple[int, bytes]:
    """Return the magic of a topic's records, and the topic's length and name as encoded there.

    Raises:
        MessageRefused: when the name is too long for a record.
    """
    length = len(topic)
    if length <= TOPIC_V1_LENGTH_MAX:
        return MAGIC_V1, bytes((length,)) + topic
    if length > RETRY_TOPIC_LENGTH_MAX:
        raise MessageRefused(f"a topic of {length} bytes; at most {RETRY_TOPIC_LENGTH_MAX} fit")
    return MAGIC_V2, _I16.pack(length) + topic


def record_size(
    topic: bytes, body: bytes, properties: bytes, born_host: bytes, store_host: bytes
) -> int:
    """Return the size of the record that `encode_stored` makes; `topic` comes from `topic_part`.

    Raises:
        MessageRefused: when the properties or the record are too long.
    """
    properties_size = len(properties)
    if properties_size > PROPERTIES_SIZE_MAX:
        raise MessageRefused(
            f"properties of {properties_size} bytes; at most {PROPERTIES_SIZE_MAX} can be stored"
        )
    hosts_size = len(born_host) + len(store_host)
    size = HOSTLESS_SIZE + hosts_size + len(body) + len(topic) + properties_size
    if size > RECORD_SIZE_MAX:
        raise MessageRefused(f"a record of {size} bytes; at most {RECORD_SIZE_MAX} can be stored")
    return size


def record_sizes(
    topic: bytes,
    bodies: Sequence[bytes],
    properties: Sequence[bytes],
    born_host: bytes,
    store_host: bytes,
) -> list[int]:
    """Return `record_size` of each message of a batch.

    Raises:
        MessageRefused: when the properties of a message, or a record, are too long.
    """
    shared = record_size(topic, b"", b"", born_host, store_host)
    sizes = [shared + len(body) + len(own) for body, own in zip(bodies, properties, strict=True)]
    if max(map(len, properties)) > PROPERTIES_SIZE_MAX or max(sizes) > RECORD_SIZE_MAX:
        for body, own in zip(bodies, properties, strict=True):
            record_size(topic, body, own, born_host, store_host)  # one of them raises
    return sizes


def encode_stored(
    magic: int,
    topic: bytes,
    size: int,
    body: bytes,
    properties: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    commit_log_offset: int,
    sys_flag: int,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
) -> bytes:
    """Return the stored bytes of a message (a broker's hot path).

    Args:
        magic: the magic of the topic's records, from `topic_part`.
        topic: the topic's length and name, from there.
        size: from `record_size`.

    Other arguments are fields of `Record`.

    Raises:
        MessageRefused: when a number does not fit into its bytes.
        UsageError: when a host is not packed.
    """
    fixed, host_flags = fixed_for(born_host, store_host)
    try:
        head = fixed.pack(
            size,
            magic,
            crc32(body) & CRC_MASK,
            queue_id,
            flag,
            queue_offset,
            commit_log_offset,
            sys_flag & ~HOST_V6_FLAGS | host_flags,
            born_time_ms,
            born_host,
            store_time_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
    except struct.error as error:
        raise MessageRefused(
            f"a number does not fit into its field of the record: {error}"
        ) from error
    return b"".join((head, body, topic, _I16.pack(len(properties)), properties))
