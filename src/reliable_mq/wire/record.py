"""The stored record: one form for the disk, for pull bodies and for Spark.

     0 TOTALSIZE i32        20 QUEUEOFFSET i64       56 STORETIMESTAMP i64, ms
     4 MAGIC u32            28 PHYSICALOFFSET i64    64 STOREHOST ip 4, port i32
     8 BODYCRC i32          36 SYSFLAG i32           72 RECONSUMETIMES i32
    12 QUEUEID i32          40 BORNTIMESTAMP i64     76 PREPAREDTRANSACTIONOFFSET i64
    16 FLAG i32             48 BORNHOST ip 4, port   84 BODYLENGTH i32, body
    then TOPICLENGTH u8 (v1) or i16 (v2), topic; PROPERTIESLENGTH i16, properties

Big-endian. An IPv6 host takes 20 bytes instead of 8 and sets a bit of SYSFLAG. A v2 record is
written only for topics of more than 127 bytes. What is left at the end of a segment is a blank:
its size, then BLANK_MAGIC.
Rule 1: every reader of stored bytes comes here. Rule 2: nothing here knows a file or a socket.
Source: Apache RocketMQ `MessageDecoder`, `MessageExtEncoder`, `MessageVersion`, `CommitLog`.
"""

import ipaddress
import struct
from collections.abc import Iterator
from zlib import crc32

import msgspec

from reliable_mq.errors import RecordError
from reliable_mq.limits import RECORD_SIZE_MAX
from reliable_mq.wire.properties import decode_properties

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
BLANK_SIZE = 8

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20

_CRC_MASK = 0x7FFFFFFF
_SIZE_AND_MAGIC = struct.Struct(">iI")
_HEAD = struct.Struct(">iIIiiqqiq")  # up to BORNHOST
_HEAD_V4 = struct.Struct(">iIIiiqqiq8sq8siqi")  # up to the body, both hosts IPv4
_TAIL = struct.Struct(">iqi")
_I64 = struct.Struct(">q")
_I16 = struct.Struct(">h")
_HOST_V4_SIZE = 8
_HOST_V6_SIZE = 20
RECORD_SIZE_MIN = _HEAD_V4.size + 3


class Record(msgspec.Struct, kw_only=True):
    """A message as it is stored.

    Hosts are packed: the address' 4 or 16 bytes and the port as i32. `properties` is the stored
    text. `queue_offset` counts messages of the queue, `commit_log_offset` bytes of the log.
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

    def property_map(self) -> dict[str, str]:
        """Return the properties by name."""
        return decode_properties(self.properties)


def body_checksum(body: bytes) -> int:
    """Return the checksum that a record keeps of its body: CRC-32 without the sign bit."""
    return crc32(body) & _CRC_MASK


def pack_host(ip: str, port: int) -> bytes:
    """Return a host as records hold it.

    Raises:
        ValueError: when `ip` is no IPv4 or IPv6 address.
    """
    return ipaddress.ip_address(ip).packed + struct.pack(">i", port)


def unpack_host(packed: bytes) -> tuple[str, int]:
    """Return (ip, port) of a host as records hold it."""
    return str(ipaddress.ip_address(packed[:-4])), int.from_bytes(packed[-4:], "big", signed=True)


def encode_record(record: Record) -> bytes:
    """Return the stored bytes; size, checksum and address bits are computed, not taken."""
    return encode_record_fields(
        topic=record.topic.encode(),
        body=record.body,
        properties=record.properties,
        queue_id=record.queue_id,
        flag=record.flag,
        queue_offset=record.queue_offset,
        commit_log_offset=record.commit_log_offset,
        sys_flag=record.sys_flag,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host,
        store_time_ms=record.store_time_ms,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


def encode_record_fields(
    *,
    topic: bytes,
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
    """Return the stored bytes of a record given by its fields (the broker's hot path)."""
    magic, topic_length = _topic_length(topic)
    size = (
        72
        + len(born_host)
        + len(store_host)
        + len(body)
        + len(topic_length)
        + len(topic)
        + 2
        + len(properties)
    )
    head = (
        size,
        magic,
        crc32(body) & _CRC_MASK,
        queue_id,
        flag,
        queue_offset,
        commit_log_offset,
    )
    if len(born_host) == _HOST_V4_SIZE and len(store_host) == _HOST_V4_SIZE:
        fixed = _HEAD_V4.pack(
            *head,
            sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
            born_time_ms,
            born_host,
            store_time_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
    else:
        sys_flag = sys_flag | BORN_HOST_V6 if len(born_host) == _HOST_V6_SIZE else sys_flag
        sys_flag = sys_flag | STORE_HOST_V6 if len(store_host) == _HOST_V6_SIZE else sys_flag
        fixed = b"".join(
            (
                _HEAD.pack(*head, sys_flag, born_time_ms),
                born_host,
                _I64.pack(store_time_ms),
                store_host,
                _TAIL.pack(reconsume_times, prepared_transaction_offset, len(body)),
            )
        )
    return b"".join((fixed, body, topic_length, topic, _I16.pack(len(properties)), properties))


def _topic_length(topic: bytes) -> tuple[int, bytes]:
    if len(topic) <= 127:
        return MAGIC_V1, bytes((len(topic),))
    return MAGIC_V2, _I16.pack(len(topic))


def record_size_at(buffer: bytes | memoryview, at: int) -> int:
    """Return the size of the record that begins at `at`, or 0 when none begins there.

    Only size and magic are looked at.
    """
    if len(buffer) - at < RECORD_SIZE_MIN:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
    is_record = magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_SIZE_MIN
    return int(size) if is_record else 0


def blank_size_at(buffer: bytes | memoryview, at: int) -> int:
    """Return the size of the end-of-segment blank that begins at `at`, or 0 when none does."""
    if len(buffer) - at < BLANK_SIZE:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
    return int(size) if magic == BLANK_MAGIC and size >= BLANK_SIZE else 0


def encode_blank(size: int) -> bytes:
    """Return the eight bytes that mark `size` bytes at the end of a segment as unused."""
    return _SIZE_AND_MAGIC.pack(size, BLANK_MAGIC)


def decode_record(buffer: bytes | memoryview, at: int = 0, *, check_body: bool = False) -> Record:
    """Return the record that begins at `at`.

    Args:
        buffer: the bytes.
        at: where the record begins.
        check_body: whether to compare the body with its checksum (recovery and audits do).

    Raises:
        RecordError: when the bytes are no record, are cut short, or fail the check.
    """
    try:
        return _decode(buffer, at, check_body)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise RecordError(f"a record at {at} is cut short or garbled: {error}") from error


def _decode(buffer: bytes | memoryview, start: int, check_body: bool) -> Record:
    size, magic, crc, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born_time = (
        _HEAD.unpack_from(buffer, start)
    )
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(f"magic {magic:#010x} at {start} is not a record's")
    end = start + size
    if not RECORD_SIZE_MIN <= size <= RECORD_SIZE_MAX or end > len(buffer):
        raise RecordError(f"a record at {start} claims {size} bytes of {len(buffer) - start}")
    at = start + _HEAD.size
    born_host, at = _host(buffer, at, sys_flag & BORN_HOST_V6)
    (store_time,) = _I64.unpack_from(buffer, at)
    store_host, at = _host(buffer, at + 8, sys_flag & STORE_HOST_V6)
    reconsume_times, prepared_offset, body_length = _TAIL.unpack_from(buffer, at)
    at += _TAIL.size
    if not 0 <= body_length <= end - at:
        raise RecordError(f"a record at {start} claims a body of {body_length} bytes")
    body = bytes(buffer[at : at + body_length])
    if check_body and crc32(body) & _CRC_MASK != crc:
        raise RecordError(f"the body of the record at {start} does not match its checksum")
    at += body_length
    if magic == MAGIC_V1:
        topic_length = buffer[at]
        at += 1
    else:
        (topic_length,) = _I16.unpack_from(buffer, at)
        at += 2
    topic_end = at + topic_length
    (properties_length,) = _I16.unpack_from(buffer, topic_end)
    properties = bytes(buffer[topic_end + 2 : topic_end + 2 + properties_length])
    if topic_end + 2 + properties_length != end or len(properties) != properties_length:
        raise RecordError(f"the lengths in the record at {start} do not add up to {size}")
    return Record(
        topic=bytes(buffer[at:topic_end]).decode(),
        body=body,
        properties=properties,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        sys_flag=sys_flag,
        born_time_ms=born_time,
        born_host=born_host,
        store_time_ms=store_time,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body_crc=crc,
        size=size,
    )


def _host(buffer: bytes | memoryview, at: int, is_v6: int) -> tuple[bytes, int]:
    end = at + (_HOST_V6_SIZE if is_v6 else _HOST_V4_SIZE)
    return bytes(buffer[at:end]), end


def iter_records(buffer: bytes | memoryview) -> Iterator[Record]:
    """Yield the records that lie one after another in `buffer`, such as the body of a pull.

    Raises:
        RecordError: at the first bytes that are no whole record.
    """
    at = 0
    while at < len(buffer):
        record = decode_record(buffer, at)
        yield record
        at += record.size
