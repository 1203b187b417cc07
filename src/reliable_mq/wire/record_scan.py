"""Scanning stored records without building `Record` objects; recovery scans millions of them.

Receives a piece of a segment and its offset in the log. Returns sizes, and the few fields that
consume queues need. `record` documents the format. A record that is valid here can be decoded
there.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import msgspec
from isal.isal_zlib import crc32

from reliable_mq.errors import RecordError
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.wire.record import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    decode_record,
)

MAGIC_PREFIX = (MAGIC_V1 >> 8).to_bytes(3)  # the first three bytes of the magic of every version
MAGIC_PLACE = 4  # position of the magic in a record

# The fixed part when both hosts are IPv4; x skips a byte:
_CHECKED = struct.Struct(">iII16xqi44xi")  # size, magic, checksum, own offset, flags, body length
_DISPATCHED = struct.Struct(">iI4xi4xq8xi16xq20xi")  # see `head_at`
# size, magic, checksum, queue id, queue offset, own offset, flags, store time, body length:
_COPIED = struct.Struct(">iIIi4xqqi16xq20xi")
_FIXED_SIZE = _CHECKED.size
_SIZE_AND_MAGIC = struct.Struct(">iI")
_OWN_OFFSET_AT, _OWN_OFFSET_END = 28, 36
_I16 = struct.Struct(">h")
_CRC_MASK = 0x7FFFFFFF
_ALIKE_MIN = 8  # fewer records cost less one by one than as columns
_ALIKE_MAX = 64


class RecordHead(NamedTuple):
    """The fields of a stored record that a consume queue needs."""

    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_time_ms: int
    properties: bytes


@lru_cache(maxsize=65_536)
def _topic_text(topic: bytes) -> str | None:
    """Return the topic's name; None when the bytes are not a name. A lost sector reads as zeros."""
    try:
        return topic.decode() if b"\0" not in topic else None
    except UnicodeDecodeError:
        return None


def claimed_size_at(buffer: memoryview, at: int, commit_log_offset: int) -> int:
    """Return the size that a record at `at` claims; 0 when there is no record of this log offset.

    The first 36 bytes of the record are enough.
    """
    if len(buffer) - at < _OWN_OFFSET_END:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
    own_offset = int.from_bytes(buffer[at + _OWN_OFFSET_AT : at + _OWN_OFFSET_END])
    is_record = magic in (MAGIC_V1, MAGIC_V2) and own_offset == commit_log_offset
    return int(size) if is_record and size >= RECORD_SIZE_MIN else 0


def valid_size_at(buffer: memoryview, at: int, commit_log_offset: int) -> int:
    """Return the size of the record at `at`, or 0 when no whole and valid record begins there.

    A record is valid when its lengths add up, its body matches its checksum, and its own offset
    field equals `commit_log_offset`. Properties have no checksum.
    """
    if len(buffer) - at < RECORD_SIZE_MIN:
        return 0
    size, magic, crc, own_offset, sys_flag, body_length = _CHECKED.unpack_from(buffer, at)
    end = at + size
    if own_offset != commit_log_offset or size < RECORD_SIZE_MIN or end > len(buffer):
        return 0
    if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
        return _valid_size_by_decoding(buffer, at)
    body_at = at + _FIXED_SIZE
    topic_at = body_at + body_length
    if body_length < 0 or topic_at + 3 > end:
        return 0
    if magic == MAGIC_V1:
        topic_end = topic_at + 1 + buffer[topic_at]
        topic_at += 1
    elif magic == MAGIC_V2:
        topic_end = topic_at + 2 + _I16.unpack_from(buffer, topic_at)[0]
        topic_at += 2
    else:
        return 0
    if not topic_at <= topic_end <= end - 2:
        return 0
    if topic_end + 2 + _I16.unpack_from(buffer, topic_end)[0] != end:
        return 0
    if crc32(buffer[body_at : body_at + body_length]) & _CRC_MASK != crc:
        return 0
    return int(size) if _topic_text(bytes(buffer[topic_at:topic_end])) is not None else 0


def _valid_size_by_decoding(buffer: memoryview, at: int) -> int:
    try:
        record = decode_record(buffer, at, check_body=True)
    except RecordError:
        return 0
    return record.size if "\0" not in record.topic else 0


def holds_records(buffer: bytes, count: int) -> bool:
    """Whether a buffer holds exactly `count` records, according to their size fields."""
    at, end = 0, len(buffer)
    unpack = _SIZE_AND_MAGIC.unpack_from
    for _ in range(count):
        if at + RECORD_SIZE_MIN > end:
            return False
        size, magic = unpack(buffer, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_SIZE_MIN:
            return False
        at += size
    return at == end


def is_record_size(size: int) -> bool:
    """Whether `size`, which is read from another file, is possible for a record."""
    return RECORD_SIZE_MIN <= size <= FRAME_SIZE_MAX


def are_valid(buffer: bytes, begins: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether a buffer begins with valid records of these log offsets and sizes.

    `valid_size_at` defines "valid".
    """
    view, at = memoryview(buffer), 0
    for begin, size in zip(begins, sizes, strict=True):
        if valid_size_at(view, at, begin) != size:
            return False
        at += size
    return True


def head_at(buffer: memoryview, at: int) -> RecordHead:
    """Return the head of a record that `valid_size_at` found valid."""
    size, magic, queue_id, queue_offset, sys_flag, store_time, length = _DISPATCHED.unpack_from(
        buffer, at
    )
    if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
        record = decode_record(buffer, at)
        return RecordHead(
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.sys_flag,
            record.store_time_ms,
            record.properties,
        )
    topic_at = at + _FIXED_SIZE + length
    if magic == MAGIC_V1:
        topic_end = topic_at + 1 + buffer[topic_at]
        topic_at += 1
    else:
        topic_end = topic_at + 2 + _I16.unpack_from(buffer, topic_at)[0]
        topic_at += 2
    return RecordHead(
        _topic_text(bytes(buffer[topic_at:topic_end])) or "",
        queue_id,
        queue_offset,
        sys_flag,
        store_time,
        bytes(buffer[topic_end + 2 : at + size]),
    )


SizedHead = tuple[int, str, int, int, int, int, bytes]
"""The size of a record, and then the fields of `RecordHead`."""


class AlikeHeads(msgspec.Struct, gc=False):
    """The heads of records of one size, topic and form, one after another, as columns."""

    size: int  # of each record
    topic: str
    queue_ids: Sequence[int]
    queue_offsets: Sequence[int]
    sys_flag: int
    store_times_ms: Sequence[int]
    properties: Sequence[bytes]

    def rows(self) -> list[SizedHead]:
        """Return each record's head."""
        size, topic, flag = repeat(self.size), repeat(self.topic), repeat(self.sys_flag)
        queues, numbers, times_ms = self.queue_ids, self.queue_offsets, self.store_times_ms
        rows = zip(size, topic, queues, numbers, flag, times_ms, self.properties, strict=False)
        return list(rows)


Heads = AlikeHeads | Sequence[SizedHead]
"""The heads of records, one after another."""


def rows_of(heads: Heads) -> Sequence[SizedHead]:
    """Return each record's head."""
    return heads.rows() if isinstance(heads, AlikeHeads) else heads


def heads_from(buffer: bytes, begin: int, commit_log_offset: int) -> tuple[Heads, int]:
    """Return the heads of some of the records from `begin` on, and where the last one ends.

    They are whole and valid as `valid_size_at` defines it, one after another; the first one is at
    `commit_log_offset` of the log. Without heads there is no such record. A slave does it for every
    message, so many of one size are read as columns, and the others in one loop.
    """
    if len(buffer) - begin < RECORD_SIZE_MIN:
        return (), begin
    if count := _count_alike(buffer, begin):
        heads = _heads_alike(buffer, begin, commit_log_offset, count)
        if heads is not None:
            return heads, begin + count * heads.size
    return _heads_one_by_one(buffer, begin, commit_log_offset)


def _count_alike(buffer: bytes, at: int) -> int:
    """Return how many records to try as columns; 0: too few of one size begin there."""
    size = int.from_bytes(buffer[at : at + 4])
    count = min((len(buffer) - at) // max(size, RECORD_SIZE_MIN), _ALIKE_MAX)
    begin = buffer[at : at + 8]  # size and magic
    while count >= _ALIKE_MIN:
        last = at + (count - 1) * size
        if buffer[last : last + 8] == begin:
            return count
        count //= 2
    return 0


@lru_cache(maxsize=256)
def _columns_of(body_length: int, topic_size: int, properties_length: int) -> struct.Struct:
    """Return a struct that reads what `_COPIED` does, and body, topic and properties."""
    return struct.Struct(f"{_COPIED.format}{body_length}s{topic_size}s{properties_length}s")


def _heads_alike(buffer: bytes, at: int, offset: int, count: int) -> AlikeHeads | None:
    """Return the heads of so many records of one size, topic and form; None: they are not alike.

    Each of them is valid as `valid_size_at` defines it.
    """
    size, magic, _, _, _, _, flag, _, length = _COPIED.unpack_from(buffer, at)
    topic_at = at + _FIXED_SIZE + length
    if length < 0 or topic_at + 3 > at + size or flag & (BORN_HOST_V6 | STORE_HOST_V6):
        return None
    is_v1 = magic == MAGIC_V1
    topic_begin = topic_at + (1 if is_v1 else 2)
    topic_length = int.from_bytes(buffer[topic_at:topic_begin], signed=not is_v1)
    topic_end = topic_begin + topic_length
    rest = at + size - topic_end - 2
    if magic not in (MAGIC_V1, MAGIC_V2) or topic_length < 0 or rest < 0:
        return None
    own = buffer[topic_at : topic_end + 2]  # the topic with its length, and the next length
    topic = _topic_text(buffer[topic_begin:topic_end])
    if topic is None or _I16.unpack_from(buffer, topic_end)[0] != rest:
        return None
    columns = _columns_of(length, len(own), rest)
    rows = columns.iter_unpack(memoryview(buffer)[at : at + count * size])
    sizes, magics, crcs, queues, numbers, places, flags, times_ms, lengths, *texts = zip(
        *rows, strict=True
    )
    bodies, topics, properties = texts
    if (
        sizes.count(size) == magics.count(magic) == lengths.count(length) == count
        and topics.count(own) == flags.count(flag) == count
        and places == tuple(range(offset, offset + count * size, size))
        and crcs == tuple([crc & _CRC_MASK for crc in map(crc32, bodies)])
    ):
        return AlikeHeads(size, topic, queues, numbers, flag, times_ms, properties)
    return None


def _heads_one_by_one(
    buffer: bytes, begin: int, commit_log_offset: int
) -> tuple[list[SizedHead], int]:
    """Return some heads as `heads_from` does."""
    found: list[SizedHead] = []
    at, limit, shift = begin, len(buffer), commit_log_offset - begin
    unpack = _COPIED.unpack_from
    while limit - at >= RECORD_SIZE_MIN and len(found) < _ALIKE_MAX:
        size, magic, crc, queue_id, number, own_offset, flags, time_ms, length = unpack(buffer, at)
        body_at, end = at + _FIXED_SIZE, at + size
        topic_at = body_at + length
        if own_offset != shift + at or size < RECORD_SIZE_MIN or end > limit:
            break
        if flags & (BORN_HOST_V6 | STORE_HOST_V6):
            if not _valid_size_by_decoding(memoryview(buffer), at):
                break
            found.append((size, *head_at(memoryview(buffer), at)))
            at = end
            continue
        if length < 0 or topic_at + 3 > end:
            break
        if magic == MAGIC_V1:
            topic_end = topic_at + 1 + buffer[topic_at]
            topic_at += 1
        elif magic == MAGIC_V2:
            topic_end = topic_at + 2 + _I16.unpack_from(buffer, topic_at)[0]
            topic_at += 2
        else:
            break
        if not topic_at <= topic_end <= end - 2:
            break
        properties = buffer[topic_end + 2 : end]
        if _I16.unpack_from(buffer, topic_end)[0] != len(properties):
            break
        if crc32(buffer[body_at : body_at + length]) & _CRC_MASK != crc:
            break
        topic = _topic_text(buffer[topic_at:topic_end])
        if topic is None:
            break
        found.append((size, topic, queue_id, number, flags, time_ms, properties))
        at = end
    return found, at


def is_of_newer_version(buffer: memoryview, at: int, commit_log_offset: int) -> bool:
    """Whether the bytes at `at` look like a record of an unknown, newer version.

    Such a record has a magic of the same family and its own offset. A torn write may leave a last
    magic byte of 0, so a magic with 0 does not count.
    """
    if len(buffer) - at < RECORD_SIZE_MIN:
        return False
    size, magic, _, own_offset, _, _ = _CHECKED.unpack_from(buffer, at)
    return (
        magic >> 8 == MAGIC_V1 >> 8
        and magic & 0xFF != 0
        and magic not in (MAGIC_V1, MAGIC_V2)
        and size >= RECORD_SIZE_MIN
        and own_offset == commit_log_offset
    )
