"""Encoding of the records of a batch in one pass. `record` documents the format."""

import struct
from collections.abc import Iterable
from functools import lru_cache

from isal.isal_zlib import crc32

from reliable_mq.errors import MessageRefused
from reliable_mq.wire.record import CRC_MASK, HOST_V6_FLAGS, fixed_for

_I16 = struct.Struct(">h")
_I64 = struct.Struct(">q")
_I32_I64 = struct.Struct(">iq")


def shared_fields(
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
        self._shared = shared_fields(
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
