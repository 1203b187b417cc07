"""Encoding stored records: one of them, and the many of a batch in one pass.

The format is told in `record`. A broker knows a topic's part of its records, and their sizes,
before it encodes one: a record holds its own place.
"""

import struct
from collections.abc import Iterable, Sequence

from isal.isal_zlib import crc32

from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.limits import PROPERTIES_SIZE_MAX, RECORD_SIZE_MAX, RETRY_TOPIC_LENGTH_MAX
from reliable_mq.wire.record import (
    CRC_MASK,
    FIXED_BY_HOSTS,
    HOST_V6_FLAGS,
    HOSTLESS_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_V1_LENGTH_MAX,
    Record,
)

_I16 = struct.Struct(">h")
_I64 = struct.Struct(">q")
_I32_I64 = struct.Struct(">iq")


def encode_record(record: Record) -> bytes:
    """Return the stored bytes; size, checksum and address bits are computed, not taken.

    Raises:
        MessageRefused: when the record would break a limit of the format, so that no reader
            could take it back.
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
    """Return the magic of a topic's records, and its length and name as they hold them.

    Raises:
        MessageRefused: when no record can hold a name as long.
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
    """Return the size of the record that `encode_stored` makes; `topic` as `topic_part` has it.

    Raises:
        MessageRefused: when properties or record are too long.
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
        MessageRefused: when properties or a record are too long.
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
    """`encode_record` for who knows `topic_part` and `record_size` (the broker's hot path).

    Raises:
        MessageRefused: when a number does not fit into its bytes.
        UsageError: when a host is not packed.
    """
    fixed, host_flags = _fixed_for(born_host, store_host)
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
            f"a field does not fit into its bytes of the record: {error}"
        ) from error
    return b"".join((head, body, topic, _I16.pack(len(properties)), properties))


def _shared_fields(
    sys_flag: int,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    reconsume_times: int,
) -> bytes:
    """Return the bytes from SYSFLAG up to BODYLENGTH of a message that is no half.

    Raises:
        MessageRefused: when a number does not fit into its bytes.
        UsageError: when a host is not packed.
    """
    host_flags = _fixed_for(born_host, store_host)[1]
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
        raise MessageRefused(f"a field of the batch does not fit into a record: {error}") from error


def _fixed_for(born_host: bytes, store_host: bytes) -> tuple[struct.Struct, int]:
    try:
        return FIXED_BY_HOSTS[len(born_host), len(store_host)]
    except KeyError:
        raise UsageError("a packed host has 8 or 20 bytes; see pack_host") from None


class RecordRun:
    """Encodes records of one queue that differ in place, flag, body and properties alone.

    Args:
        magic: of the topic's records.
        topic: length and name, as `topic_part` has them.
        queue_id: the queue.
        sys_flag: see `record`.
        born_time_ms: when the producer made the messages.
        born_host: the producer, packed.
        store_time_ms: when they are stored.
        store_host: this broker, packed.
        reconsume_times: how often the messages were given before.
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
        self._head = struct.Struct(f">iIIiiqq{len(self._shared)}si")

    def encode(
        self,
        sizes: Iterable[int],
        offsets: Iterable[int],
        queue_offset: int,
        flags: Iterable[int],
        bodies: Iterable[bytes],
        properties: Iterable[bytes],
    ) -> bytes:
        """Return the records, one behind the other.

        Args:
            sizes: of each record, as `record_sizes` has them.
            offsets: where in the log each begins.
            queue_offset: of the first; the others follow.
            flags: of each message.
            bodies: of each message.
            properties: of each message, as stored.
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
