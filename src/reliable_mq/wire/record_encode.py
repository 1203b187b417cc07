"""Encoding of stored records: a single record, one of many alike, or a whole batch in one pass.

`record` documents the format. A record contains its own log offset. So the broker computes the
topic part and the sizes before it encodes a record.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

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
    encode_stored,
    fixed_for,
    record_former,
)

_I16 = struct.Struct(">h")
_I64 = struct.Struct(">q")
_I32_I64 = struct.Struct(">iq")


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


def _shared_fields(
    sys_flag: int,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    reconsume_times: int,
) -> bytes:
    """Return the bytes from SYSFLAG up to BODYLENGTH, for a message that is not a half message.

    Raises:
        MessageRefused: when a number does not fit into its bytes.
        UsageError: when a host is not packed.
    """
    host_flags = fixed_for(born_host, store_host)[1]
    try:
        return b"".join(
            (
                _I32_I64.pack(sys_flag & ~HOST_V6_FLAGS | host_flags, born_time_ms),
                born_host,
                _I64.pack(store_time_ms),
                store_host,
                _I32_I64.pack(reconsume_times, 0),
            )
        )
    except struct.error as error:
        raise MessageRefused(f"a number of the batch does not fit in a record: {error}") from error


@lru_cache(maxsize=8)
def _head_around(shared_size: int) -> struct.Struct:
    """Return the fields before the body, of which so many bytes are the same in all records."""
    return struct.Struct(f">iIIiiqq{shared_size}si")


class RecordForm:
    """Encodes records that differ only in place, times, body and unique key.

    Args:
        topic: the name.
        flag: see `Record`, as the next ones.
        sys_flag: as the producer sent it.
        born_host: the producer, packed.
        store_host: this broker, packed.
        reconsume_times: how often the messages were delivered before.
        properties: before and behind the unique key.
        key_size: bytes of the unique key.
        tags_code: of the units of the messages.

    Attributes:
        size: of a record, without the body.
        record_of: `encode` of a message that comes alone; see `record_former`.
        properties, tags_code: see above.

    Raises:
        MessageRefused: when a record would break a limit of the format.
    """

    __slots__ = (
        "_after_key",
        "_before_key",
        "_born_host",
        "_flag",
        "_magic",
        "_pack",
        "_reconsume_times",
        "_store_host",
        "_sys_flag",
        "properties",
        "record_of",
        "size",
        "tags_code",
    )

    def __init__(
        self,
        topic: bytes,
        flag: int,
        sys_flag: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        properties: tuple[bytes, bytes],
        key_size: int,
        tags_code: int,
    ) -> None:
        fixed, host_flags = fixed_for(born_host, store_host)
        self._pack = fixed.pack
        self._magic, encoded_topic = topic_part(topic)
        self._flag, self._sys_flag = flag, sys_flag & ~HOST_V6_FLAGS | host_flags
        self._born_host, self._store_host = born_host, store_host
        self._reconsume_times = reconsume_times
        self.properties = before, self._after_key = properties
        own = before + bytes(key_size) + self._after_key
        self.size = record_size(encoded_topic, b"", own, born_host, store_host)
        self._before_key = encoded_topic + _I16.pack(len(own)) + before
        self.record_of = record_former(
            (fixed.pack, self._magic, flag, self._sys_flag),
            (born_host, store_host, reconsume_times),
            (self._before_key, self._after_key),
        )
        self.tags_code = tags_code

    def encode(
        self,
        sizes: Iterable[int],
        queue_ids: Iterable[int],
        queue_offsets: Iterable[int],
        offsets: Iterable[int],
        born_times_ms: Iterable[int],
        store_time_ms: int,
        bodies: Iterable[bytes],
        keys: Iterable[bytes],
    ) -> bytes:
        """Return the stored bytes of messages, one after another (a broker's hot path).

        What differs comes in columns; the others are of `self`, or the same for all.
        """
        pack, magic, flag, sys_flag = self._pack, self._magic, self._flag, self._sys_flag
        born_host, store_host, times = self._born_host, self._store_host, self._reconsume_times
        before_key, after_key = self._before_key, self._after_key
        parts: list[bytes] = []
        for size, queue_id, number, offset, born_time_ms, body, key in zip(
            sizes, queue_ids, queue_offsets, offsets, born_times_ms, bodies, keys, strict=True
        ):
            parts += (
                pack(
                    size,
                    magic,
                    crc32(body) & CRC_MASK,
                    queue_id,
                    flag,
                    number,
                    offset,
                    sys_flag,
                    born_time_ms,
                    born_host,
                    store_time_ms,
                    store_host,
                    times,
                    0,
                    len(body),
                ),
                body,
                before_key,
                key,
                after_key,
            )
        return b"".join(parts)


class RecordRun:
    """Encodes records of one queue that differ only in log offset, flag, body and properties.

    Args:
        magic: the magic of the topic's records.
        topic: length and name, from `topic_part`.
        queue_id: the queue.
        sys_flag: see `record`.
        born_time_ms: when the producer made the messages.
        born_host: the producer, packed.
        store_time_ms: when the messages are stored.
        store_host: this broker, packed.
        reconsume_times: how often the messages were delivered before.
    """

    def __init__(
        self,
        magic: int,
        topic: bytes,
        queue_id: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        store_time_ms: int,
        store_host: bytes,
        reconsume_times: int,
    ) -> None:
        self._magic = magic
        self._topic = topic
        self._queue_id = queue_id
        self._shared = _shared_fields(
            sys_flag, born_time_ms, born_host, store_time_ms, store_host, reconsume_times
        )
        self._head = _head_around(len(self._shared))

    def encode(
        self,
        sizes: Iterable[int],
        offsets: Iterable[int],
        queue_offset: int,
        flags: Iterable[int],
        bodies: Iterable[bytes],
        properties: Iterable[bytes],
    ) -> bytes:
        """Return the encoded records, one after another.

        Args:
            sizes: size of each record, from `record_sizes`.
            offsets: log offset of each record.
            queue_offset: queue offset of the first record; the others follow.
            flags: flag of each message.
            bodies: body of each message.
            properties: encoded properties of each message.
        """
        pack, pack_length = self._head.pack, _I16.pack
        magic, queue_id, shared, topic = self._magic, self._queue_id, self._shared, self._topic
        parts: list[bytes] = []
        for size, offset, flag, body, own in zip(
            sizes, offsets, flags, bodies, properties, strict=True
        ):
            parts += (
                pack(
                    size,
                    magic,
                    crc32(body) & CRC_MASK,
                    queue_id,
                    flag,
                    queue_offset,
                    offset,
                    shared,
                    len(body),
                ),
                body,
                topic,
                pack_length(len(own)),
                own,
            )
            queue_offset += 1
        return b"".join(parts)
