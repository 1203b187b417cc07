"""The stored record: one format for the disk, for pull bodies and for Spark.

     0 TOTALSIZE i32        20 QUEUEOFFSET i64       56 STORETIMESTAMP i64, ms
     4 MAGIC u32            28 PHYSICALOFFSET i64    64 STOREHOST ip 4, port i32
     8 BODYCRC i32          36 SYSFLAG i32           72 RECONSUMETIMES i32
    12 QUEUEID i32          40 BORNTIMESTAMP i64     76 PREPAREDTRANSACTIONOFFSET i64
    16 FLAG i32             48 BORNHOST ip 4, port   84 BODYLENGTH i32, body
    then TOPICLENGTH i8 (v1) or i16 (v2), topic; PROPERTIESLENGTH i16, properties

Big-endian; lengths are never negative. An IPv6 host takes 20 bytes instead of 8 and sets a bit of
SYSFLAG. A v2 record is written only for topics of more than 127 bytes. A blank fills the rest of a
segment: its size, then BLANK_MAGIC.
Rule 1: every reader of stored bytes uses this module. Rule 2: it knows no file and no socket.
Source: Apache RocketMQ `MessageDecoder`, `MessageExtEncoder`, `MessageVersion`, `CommitLog`.
"""

import ipaddress
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate

import msgspec
from isal.isal_zlib import crc32

from reliable_mq.errors import RecordError, UsageError
from reliable_mq.limits import RECORD_SIZE_MAX
from reliable_mq.wire.properties import decode_properties

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
BLANK_SIZE = 8
RECORD_MAGICS = frozenset((MAGIC_V1, MAGIC_V2))

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20

CRC_MASK = 0x7FFFFFFF
_HOST_V4_SIZE = 8
_HOST_V6_SIZE = 20
HOST_V6_FLAGS = BORN_HOST_V6 | STORE_HOST_V6
TOPIC_V1_LENGTH_MAX = 127


def _fixed_part(born_host_size: int, store_host_size: int) -> struct.Struct:
    return struct.Struct(f">iIIiiqqiq{born_host_size}sq{store_host_size}siqi")


# The fields before the body: by the sizes of the two hosts to write, by the host flags to read.
_FIXED_BY_HOSTS = {
    (_HOST_V4_SIZE, _HOST_V4_SIZE): (_fixed_part(_HOST_V4_SIZE, _HOST_V4_SIZE), 0),
    (_HOST_V6_SIZE, _HOST_V4_SIZE): (_fixed_part(_HOST_V6_SIZE, _HOST_V4_SIZE), BORN_HOST_V6),
    (_HOST_V4_SIZE, _HOST_V6_SIZE): (_fixed_part(_HOST_V4_SIZE, _HOST_V6_SIZE), STORE_HOST_V6),
    (_HOST_V6_SIZE, _HOST_V6_SIZE): (_fixed_part(_HOST_V6_SIZE, _HOST_V6_SIZE), HOST_V6_FLAGS),
}
FIXED_BY_FLAGS = {flags: fixed for fixed, flags in _FIXED_BY_HOSTS.values()}
SYS_FLAG_AT = 36
_SIZE_AND_MAGIC = struct.Struct(">iI")
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
HOSTLESS_SIZE = FIXED_BY_FLAGS[0].size - 2 * _HOST_V4_SIZE + 2  # + PROPERTIESLENGTH
RECORD_SIZE_MIN = FIXED_BY_FLAGS[0].size + 3  # no body, no topic, no properties
RECORD_HEAD_SIZE_MAX = FIXED_BY_FLAGS[HOST_V6_FLAGS].size  # all fields before the body


class Record(msgspec.Struct):
    """A stored message.

    Hosts are packed: the 4 or 16 bytes of the address, then the port as i32. `properties` is the
    encoded text. `queue_offset` counts messages of the queue. `commit_log_offset` counts bytes.
    """

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    commit_log_offset: int = 0
    sys_flag: int = 0
    born_time_ms: int = 0
    born_host: bytes = b"\0" * _HOST_V4_SIZE
    store_time_ms: int = 0
    store_host: bytes = b"\0" * _HOST_V4_SIZE
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    size: int = 0

    def offset_message_id(self) -> str:
        """Return the broker's name for the message at this place: see `wire.message_id`."""
        return (self.store_host + _I64.pack(self.commit_log_offset)).hex().upper()

    def property_map(self) -> dict[str, str]:
        """Return the properties by name."""
        return decode_properties(self.properties)


def body_checksum(body: bytes | memoryview) -> int:
    """Return the checksum of a body in its record: CRC-32 without the sign bit."""
    return crc32(body) & CRC_MASK


def pack_host(ip: str, port: int) -> bytes:
    """Return a host in the packed form of records.

    Raises:
        ValueError: when `ip` is not an IPv4 or IPv6 address.
    """
    return ipaddress.ip_address(ip).packed + struct.pack(">i", port)


@lru_cache(maxsize=1024)
def unpack_host(packed: bytes) -> tuple[str, int]:
    """Return (ip, port) of a packed host."""
    return str(ipaddress.ip_address(packed[:-4])), int.from_bytes(packed[-4:], "big", signed=True)


def record_size_at(buffer: bytes | memoryview, at: int) -> int:
    """Return the size of the record that begins at `at`, or 0 when no record begins there.

    Only the size and the magic are checked. A size outside the limits of a record gives 0.
    """
    if len(buffer) - at < RECORD_SIZE_MIN:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
    is_record = magic in RECORD_MAGICS and RECORD_SIZE_MIN <= size <= RECORD_SIZE_MAX
    return int(size) if is_record else 0


def blank_size_at(buffer: bytes | memoryview, at: int) -> int:
    """Return the size of the end-of-segment blank at `at`, or 0 when no blank begins there."""
    if len(buffer) - at < BLANK_SIZE:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
    return int(size) if magic == BLANK_MAGIC and size >= BLANK_SIZE else 0


def encode_blank(size: int) -> bytes:
    """Return the eight bytes that mark `size` bytes at the end of a segment as unused."""
    return _SIZE_AND_MAGIC.pack(size, BLANK_MAGIC)


def fixed_for(born_host: bytes, store_host: bytes) -> tuple[struct.Struct, int]:
    """Return the fields before the body of a record with these hosts, and the flags of the hosts.

    Raises:
        UsageError: when a host is not packed.
    """
    try:
        return _FIXED_BY_HOSTS[len(born_host), len(store_host)]
    except KeyError:
        raise UsageError("a packed host has 8 or 20 bytes; see pack_host") from None


def decode_record(buffer: bytes | memoryview, at: int = 0, *, check_body: bool = False) -> Record:
    """Return the record that begins at `at`.

    Args:
        buffer: the bytes.
        at: where the record begins. Default 0.
        check_body: whether to check the checksum of the body. Recovery and audits do. Default
            False.

    Raises:
        RecordError: when the bytes are not a record, are cut short, or fail the check.
    """
    try:
        return _decode(buffer, at, check_body)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise RecordError(f"the record at {at} is cut short or damaged: {error}") from error


def _decode(buffer: bytes | memoryview, start: int, check_body: bool) -> Record:
    (host_flags,) = _I32.unpack_from(buffer, start + SYS_FLAG_AT)
    fixed = FIXED_BY_FLAGS[host_flags & HOST_V6_FLAGS]
    # fmt: off
    (
        size, magic, crc, queue_id, flag, queue_offset, commit_log_offset, sys_flag,
        born_time, born_host, store_time, store_host, reconsume_times, prepared_offset, body_length,
    ) = fixed.unpack_from(buffer, start)
    # fmt: on
    if magic not in RECORD_MAGICS:
        raise RecordError(f"magic {magic:#010x} at {start} is not the magic of a record")
    end = start + size
    if not RECORD_SIZE_MIN <= size <= RECORD_SIZE_MAX or end > len(buffer):
        raise RecordError(
            f"a record at {start} has the size {size}, but {len(buffer) - start} bytes are left"
        )
    body_at = start + fixed.size
    body_end = body_at + body_length
    if not body_at <= body_end < end:
        raise RecordError(f"a record at {start} has the body size {body_length}, beyond its end")
    body = bytes(buffer[body_at:body_end])
    if check_body and crc32(body) & CRC_MASK != crc:
        raise RecordError(f"the body of the record at {start} does not match its checksum")
    topic_length, topic_at = topic_length_at(buffer, body_end, magic)
    topic_end = topic_at + topic_length
    (properties_length,) = _I16.unpack_from(buffer, topic_end)
    properties_at = topic_end + 2
    if topic_length < 0 or properties_length < 0 or properties_at + properties_length != end:
        raise RecordError(f"the lengths in the record at {start} do not add up to {size}")
    return Record(
        str(buffer[topic_at:topic_end], "utf-8"),
        body,
        bytes(buffer[properties_at:end]),
        queue_id,
        flag,
        queue_offset,
        commit_log_offset,
        sys_flag,
        born_time,
        born_host,
        store_time,
        store_host,
        reconsume_times,
        prepared_offset,
        crc,
        size,
    )


def topic_length_at(buffer: bytes | memoryview, at: int, magic: int) -> tuple[int, int]:
    """Return the length of the topic behind a body, and where it begins; below 0: not legal."""
    if magic == MAGIC_V1:
        length = buffer[at]
        return (length if length <= TOPIC_V1_LENGTH_MAX else -1), at + 1
    return _I16.unpack_from(buffer, at)[0], at + 2


@lru_cache(maxsize=256)
def _heads_of(size: int, count: int) -> struct.Struct:
    """Return a struct that reads the first eight bytes (size, magic) of `count` equal records."""
    return struct.Struct(">" + f"8s{size - 8}x" * count)


@lru_cache(maxsize=64)
def _sizes_and_magics(count: int) -> struct.Struct:
    return struct.Struct(">" + "iI" * count)


def holds_records_of(buffer: bytes, sizes: tuple[int, ...]) -> bool:
    """Whether a buffer holds records of exactly these sizes, according to their size fields.

    Usually all sizes are equal; then there is no loop over the records.
    """
    first, count = sizes[0], len(sizes)
    is_usual = first >= RECORD_SIZE_MIN and sizes.count(first) == count
    if is_usual and first * count == len(buffer):
        heads = _heads_of(first, count).unpack(buffer)
        if heads.count(_SIZE_AND_MAGIC.pack(first, MAGIC_V1)) == count:
            return True
    if min(sizes) < RECORD_SIZE_MIN or sum(sizes) != len(buffer):
        return False
    begins = b"".join([buffer[at : at + 8] for at in accumulate(sizes[:-1], initial=0)])
    fields = _sizes_and_magics(count).unpack(begins)
    return fields[::2] == sizes and RECORD_MAGICS.issuperset(fields[1::2])


def is_message(record: bytes, queue_id: int, number: int) -> bool:
    """Whether a record's own fields say that it is message `number` of this queue."""
    return record[12:16] == queue_id.to_bytes(4) and record[20:28] == number.to_bytes(8)


def are_messages(buffer: bytes, sizes: tuple[int, ...], queue_id: int, number: int) -> bool:
    """Whether a buffer holds records of exactly these sizes: a queue's messages from `number` on.

    Of the messages' own fields, those of the first and of the last are looked at.
    """
    if not holds_records_of(buffer, sizes):
        return False
    last, of_queue = len(buffer) - sizes[-1], queue_id.to_bytes(4)
    return (
        buffer[12:16] == of_queue == buffer[last + 12 : last + 16]
        and buffer[20:28] == number.to_bytes(8)
        and buffer[last + 20 : last + 28] == (number + len(sizes) - 1).to_bytes(8)
    )


def record_former(
    shared: tuple[Callable[..., bytes], int, int, int],
    hosts: tuple[bytes, bytes, int],
    around_key: tuple[bytes, bytes],
) -> Callable[[int, int, int, int, int, int, bytes, bytes], bytes]:
    """Return what encodes a record of messages that are alike (a broker's hot path).

    It receives size, queue, queue offset, log offset, time of birth, store time, body, unique key.

    Args:
        shared: the `pack` of the fixed fields, the magic, the flag, and the flags of the record.
        hosts: the packed producer and broker, and how often the messages were delivered before.
        around_key: what stands between body and unique key, and behind the unique key.
    """
    pack, magic, flag, sys_flag = shared
    born_host, store_host, times = hosts
    before_key, after_key = around_key

    def encode(
        size: int,
        queue_id: int,
        number: int,
        offset: int,
        born_time_ms: int,
        time_ms: int,
        body: bytes,
        key: bytes,
    ) -> bytes:
        head = pack(
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
            time_ms,
            store_host,
            times,
            0,
            len(body),
        )
        return b"".join((head, body, before_key, key, after_key))

    return encode


def iter_records(buffer: bytes | memoryview) -> Iterator[Record]:
    """Yield the records of `buffer`, which lie one after another, as in the body of a pull.

    Raises:
        RecordError: at the first bytes that are not a whole record.
    """
    at = 0
    while at < len(buffer):
        record = decode_record(buffer, at)
        yield record
        at += record.size
