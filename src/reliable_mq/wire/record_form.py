"""Encoding of stored records that are alike: they differ in place, times, body and unique key.

`record` documents the format. What all share is packed once, when a `RecordForm` is made.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache

from isal.isal_zlib import crc32

from reliable_mq.wire.record import CRC_MASK, HOST_V6_FLAGS, fixed_for, record_former
from reliable_mq.wire.record_encode import record_size, topic_part
from reliable_mq.wire.rows import pack_rows

_SIZE_AND_MAGIC = struct.Struct(">iI")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_TWO_I32 = struct.Struct(">ii")
_MANY = 8  # fewer records are faster packed one by one


@lru_cache(maxsize=8)
def _shared(born_host_size: int, store_host_size: int) -> struct.Struct:
    """Return the fields from SYSFLAG up to BODYLENGTH."""
    return struct.Struct(f">iq{born_host_size}sq{store_host_size}siqi")


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
        topic, properties, key_size, tags_code: see above.

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
        "_pack_shared",
        "_reconsume_times",
        "_store_host",
        "_sys_flag",
        "key_size",
        "properties",
        "record_of",
        "size",
        "tags_code",
        "topic",
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
        self._pack_shared = _shared(len(born_host), len(store_host)).pack
        self.topic, self.key_size = topic, key_size
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
        sizes: Sequence[int],
        queue_ids: Sequence[int],
        queue_offsets: Sequence[int],
        offsets: Sequence[int],
        born_times_ms: Sequence[int],
        store_time_ms: int,
        bodies: Sequence[bytes],
        keys: Sequence[bytes],
    ) -> bytes:
        """Return the stored bytes of messages, one after another (a broker's hot path).

        What differs comes in columns; the others are of `self`, or the same for all. Offsets in a
        `range` say that all records have one size.
        """
        if isinstance(offsets, range) and len(offsets) >= _MANY:
            return self._encode_sized(
                queue_ids, queue_offsets, offsets, born_times_ms, store_time_ms, bodies, keys
            )
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

    def encode_batch(
        self,
        queue_id: int,
        queue_offset: int,
        offsets: Sequence[int],
        born_time_ms: int,
        store_time_ms: int,
        bodies: Sequence[bytes],
        keys: Sequence[bytes],
    ) -> bytes:
        """Return the stored bytes of the messages of a batch, by one `pack` for all.

        `queue_offset` is that of the first message; the others follow. Bodies have one size.
        """
        size, count, before, after = len(bodies[0]), len(bodies), self._before_key, self._after_key
        head = _SIZE_AND_MAGIC.pack(self.size + size, self._magic)
        queue_and_flag = _TWO_I32.pack(queue_id, self._flag)
        shared = self._shared(born_time_ms, store_time_ms, size)
        form = f"8sI8sqq{len(shared)}s{size}s{len(before)}s{self.key_size}s{len(after)}s"
        row = (head, 0, queue_and_flag, 0, 0, shared, b"", before, b"", after)
        columns: dict[int, Sequence[object]] = {
            1: [crc32(body) & CRC_MASK for body in bodies],
            3: range(queue_offset, queue_offset + count),
            4: offsets,
            6: bodies,
            8: keys,
        }
        return pack_rows(form, row, columns, count)

    def _shared(self, born_time_ms: int, store_time_ms: int, size: int) -> bytes:
        """Return the fields from the system flags to the size of the body, which records share."""
        return self._pack_shared(
            self._sys_flag,
            born_time_ms,
            self._born_host,
            store_time_ms,
            self._store_host,
            self._reconsume_times,
            0,
            size,
        )

    def _encode_sized(
        self,
        queue_ids: Sequence[int],
        queue_offsets: Sequence[int],
        offsets: Sequence[int],
        born_times_ms: Sequence[int],
        store_time_ms: int,
        bodies: Sequence[bytes],
        keys: Sequence[bytes],
    ) -> bytes:
        """Return `encode` of messages whose records have one size, by one `pack` for all."""
        size, before, after = len(bodies[0]), self._before_key, self._after_key
        head = _SIZE_AND_MAGIC.pack(self.size + size, self._magic)
        shared = self._shared(0, store_time_ms, size)
        flag, sys_flag, rest = _I32.pack(self._flag), shared[:4], shared[12:]
        form = f"8sIi4sqq4sq{len(rest)}s{size}s{len(before)}s{self.key_size}s{len(after)}s"
        row = (head, 0, 0, flag, 0, 0, sys_flag, 0, rest, b"", before, b"", after)
        columns: dict[int, Sequence[object]] = {
            1: [crc32(body) & CRC_MASK for body in bodies],
            2: queue_ids,
            4: queue_offsets,
            5: offsets,
            7: born_times_ms,
            9: bodies,
            11: keys,
        }
        return pack_rows(form, row, columns, len(bodies))
