"""The plain reader of commit log records, one at a time, with the fields of reconciliation only.

Receives bytes and the starts of records. Returns one tuple (`LogRow`) for each record. Knows no
files and no Spark. It uses only the format (`wire/record.py`), not the broker's own reader: so it
cannot inherit a mistake of the code that it audits.

`log_roles` explains the roles. `log_columns` reads many records at once. It uses this module for
rare records, and must return the same values as this module for all others.

Source of the format: Apache RocketMQ `MessageDecoder`, `CommitLog`.
"""

import struct
import zlib
from enum import Enum
from typing import NamedTuple

from reliable_mq.errors import RecordError
from reliable_mq.limits import RECORD_SIZE_MAX
from reliable_mq.message_digest import DIGEST_SIZE, body_hash_of, digest_of_stored
from reliable_mq.reconcile.brokers.log_roles import (
    DAMAGED,
    DELAYED,
    FIRST,
    RecordContext,
    RecordPlace,
    RecordRole,
    is_special,
    role_of,
    role_of_first,
)
from reliable_mq.wire.compression import unpacker
from reliable_mq.wire.message_id import ledger_id
from reliable_mq.wire.properties import ORIGIN_MESSAGE_ID, TAGS, UNIQ_KEY, decode_properties
from reliable_mq.wire.record import (
    BLANK_MAGIC,
    BORN_HOST_V6,
    COMPRESSED,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEAD_SIZE_MAX,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Record,
    decode_record,
)

DEAD_LETTER_REASON = "DEAD_LETTER_REASON"


class LogRow(NamedTuple):
    """The values of one record. Times are milliseconds since the epoch, sizes are bytes.

    Attributes:
        message_id: the message id that consumers see: the producer's UNIQ_KEY, or else the offset
            message id of the first delivery; see `ledger_id`.
        topic: the topic that the message was sent to, as far as the record has it.
        queue_topic: the topic of the queue with the record. `queue_id` is its number.
        content_crc: computed from the stored body after decompression. None: it was not requested,
            or the body cannot be unpacked.
        body_crc: the checksum that is stored in the record.
        due_time: when the broker will deliver a delayed copy. None: it is no such copy.
        message_digest: of first deliveries and delayed ones, if the body is read; see
            `message_digest.py`.
    """

    role: str
    commit_log_offset: int
    size: int
    topic: str | None = None
    consumer_group: str | None = None
    message_id: str | None = None
    tag: str | None = None
    queue_topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    sys_flag: int | None = None
    reconsume_times: int | None = None
    delay_level: int | None = None
    born_time: int | None = None
    store_time: int | None = None
    body_size: int | None = None
    body_crc: int | None = None
    content_crc: int | None = None
    reason: str | None = None
    due_time: int | None = None
    message_digest: bytes | None = None


class ScanEnd(Enum):
    """Why a scan ended."""

    CUT = "the bytes end inside a record"
    BLANK = "the rest of the segment is blank"
    INVALID = "no record begins here"


_HEAD_V4 = struct.Struct(">iIii4xqqiq8xq8xi8xi")  # wire/record.py draws it; both hosts IPv4
_HEAD_V4_SIZE = _HEAD_V4.size
_SIZE_AND_MAGIC = struct.Struct(">iI")
_PHYSICAL_OFFSET_AT = 28
_STORE_HOST_AT, _STORE_HOST_SIZE = 64, 8
_SIGN_BIT = 1 << 31
_SYS_FLAG_AT, _STORE_TIME_AT, _V6_MORE = 36, 56, 12
_MAGICS = (MAGIC_V1, MAGIC_V2)
HEAD_SIZE_MAX = RECORD_HEAD_SIZE_MAX
_CRC_MASK = 0x7FFFFFFF
_UNPACKED_SIZE_MAX = 64 * 1024 * 1024
INVISIBLE = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


def damaged(log_offset: int, size: int) -> LogRow:
    """Return the row of a damaged part of the log."""
    return LogRow(DAMAGED, log_offset, size)


def record_starts(buffer: bytes) -> tuple[list[int], int, ScanEnd]:
    """Find the starts of records from the beginning of `buffer`, by their sizes only.

    Returns:
        The start of each record, where the scan ended, and why.
    """
    starts: list[int] = []
    at, length = 0, len(buffer)
    unpack = _SIZE_AND_MAGIC.unpack_from
    while length - at >= _SIZE_AND_MAGIC.size:
        size, magic = unpack(buffer, at)
        if magic not in _MAGICS:
            return starts, at, ScanEnd.BLANK if magic == BLANK_MAGIC else ScanEnd.INVALID
        if not RECORD_SIZE_MIN <= size <= RECORD_SIZE_MAX:
            return starts, at, ScanEnd.INVALID
        if size > length - at:
            break
        starts.append(at)
        at += size
    return starts, at, ScanEnd.CUT


def find_record(buffer: bytes, log_offset: int) -> int | None:
    """Return the start of the first record in `buffer` that contains its own log offset, or None.

    A scan uses it to continue after damage. A body may contain the four bytes of a magic number,
    but hardly together with the right log offset 24 bytes later.
    """
    found: list[int] = []
    for magic in _MAGICS:
        mark = magic.to_bytes(4, "big")
        at = buffer.find(mark, 4)
        while at >= 0:
            start = at - 4
            says = buffer[start + _PHYSICAL_OFFSET_AT : start + _PHYSICAL_OFFSET_AT + 8]
            if int.from_bytes(says, "big") == log_offset + start and len(says) == 8:
                found.append(start)
                break
            at = buffer.find(mark, at + 1)
    return min(found, default=None)


def store_time_in(head: bytes) -> int | None:
    """Return the store time in the first `HEAD_SIZE_MAX` bytes of a record; None: no record."""
    if len(head) < HEAD_SIZE_MAX or _SIZE_AND_MAGIC.unpack_from(head)[1] not in _MAGICS:
        return None
    is_v6 = int.from_bytes(head[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big") & BORN_HOST_V6
    at = _STORE_TIME_AT + (_V6_MORE if is_v6 else 0)
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def read_row(
    buffer: bytes, at: int, log_offset: int | None, *, check_body: bool, context: RecordContext
) -> LogRow | None:
    """Return the values of the record at `at`, or None if no valid record is there.

    Args:
        buffer: contains the whole record, as found by `record_starts`.
        at: the start of the record in `buffer`.
        log_offset: the log offset that the record must contain. None: accept any.
        check_body: whether to compute `content_crc`.
        context: the settings and names of the record's broker.
    """
    head = _HEAD_V4.unpack_from(buffer, at)
    if head[1] == MAGIC_V2 or head[6] & (BORN_HOST_V6 | STORE_HOST_V6):
        return _unusual_row(buffer, at, log_offset, check_body, context)
    (size, _, body_crc, queue_id, queue_offset, says, sys_flag, born_time, store_time) = head[:9]
    reconsume_times, body_size = head[9:]
    body_at = at + _HEAD_V4_SIZE
    topic_at = body_at + body_size + 1
    end = at + size
    if log_offset not in (None, says) or body_size < 0 or topic_at + 2 > end:
        return None
    properties_at = topic_at + buffer[topic_at - 1] + 2
    properties = buffer[properties_at:end]
    if properties_at > end or int.from_bytes(
        buffer[properties_at - 2 : properties_at], "big"
    ) != len(properties):
        return None
    body = buffer[body_at : topic_at - 1] if check_body else None
    return _described(
        buffer[topic_at : properties_at - 2],
        properties,
        (queue_id, queue_offset, says, size, sys_flag, reconsume_times),
        (born_time, store_time, body_size, body_crc),
        body,
        buffer[at + _STORE_HOST_AT : at + _STORE_HOST_AT + _STORE_HOST_SIZE],
        context,
    )


def _unusual_row(
    buffer: bytes, at: int, log_offset: int | None, check_body: bool, context: RecordContext
) -> LogRow | None:
    """Read a record with IPv6 hosts or a long topic. It is rare, so it may use the slow decoder."""
    try:
        record: Record = decode_record(buffer, at)
    except RecordError:
        return None
    if log_offset not in (None, record.commit_log_offset):
        return None
    body_crc = record.body_crc - 2 * (record.body_crc & _SIGN_BIT)
    return _described(
        record.topic.encode(),
        record.properties,
        (
            *(record.queue_id, record.queue_offset, record.commit_log_offset),
            *(record.size, record.sys_flag, record.reconsume_times),
        ),
        (record.born_time_ms, record.store_time_ms, len(record.body), body_crc),
        record.body if check_body else None,
        record.store_host,
        context,
    )


def content_of(body: bytes, sys_flag: int) -> bytes | None:
    """Return a body as it was sent, or None if it cannot be unpacked here.

    A body with the compressed flag that is not compressed is returned unchanged.
    """
    if not sys_flag & COMPRESSED:
        return body
    found = unpacker(sys_flag)
    if found is None:
        return None
    unpacking, errors = found
    try:
        unpacked: bytes = unpacking.decompress(body, _UNPACKED_SIZE_MAX)
    except errors:
        return body
    return unpacked if len(unpacked) < _UNPACKED_SIZE_MAX else None  # larger than any message


def content_crc(content: bytes) -> int:
    """Return the checksum of a body as it was sent."""
    return zlib.crc32(content) & _CRC_MASK


def stored_digest(topic: str, properties: bytes, content: bytes | memoryview) -> bytes:
    """Return the digest of a message, in the form of the ledgers."""
    return digest_of_stored(topic, properties, body_hash_of(content))[:DIGEST_SIZE]


def _described(
    topic_bytes: bytes,
    properties: bytes,
    place_and_size: tuple[int, int, int, int, int, int],
    times_and_body: tuple[int, int, int, int],
    body: bytes | None,
    store_host: bytes,
    context: RecordContext,
) -> LogRow:
    queue_topic = topic_bytes.decode("utf-8", "replace")
    queue_id, queue_offset, log_offset, size, sys_flag, reconsume_times = place_and_size
    role, reason = RecordRole(FIRST, queue_topic), None
    if is_special(queue_topic) or sys_flag & TRANSACTION_MASK in INVISIBLE:
        names = decode_properties(properties)
        place = RecordPlace(queue_topic, queue_id, queue_offset, log_offset, times_and_body[1])
        role = role_of(place, names, context)
        reason = names.get(DEAD_LETTER_REASON)
    is_first = role.role == FIRST
    content = None if body is None else content_of(body, sys_flag)
    digest = None
    if content is not None and role.role in (FIRST, DELAYED):
        digest = stored_digest(role.topic, properties, content)
    return LogRow(
        role_of_first(queue_topic, queue_id, log_offset, context) if is_first else role.role,
        log_offset,
        size,
        role.topic,
        role.consumer_group,
        ledger_id(
            property_value(properties, UNIQ_KEY)
            or id_without_key(properties, role.role, store_host, log_offset)
        ),
        property_value(properties, TAGS),
        queue_topic,
        queue_id,
        queue_offset,
        sys_flag,
        reconsume_times,
        role.delay_level,
        *times_and_body,
        None if content is None else content_crc(content),
        reason,
        role.due_ms,
        digest,
    )


def id_without_key(properties: bytes, role: str, store_host: bytes, log_offset: int) -> str:
    """Return the message id, for consumers, of a message without UNIQ_KEY.

    It is the offset message id of the first delivery. Copies have that id as a property.
    """
    origin = None if role == FIRST else property_value(properties, ORIGIN_MESSAGE_ID)
    return origin or (store_host + (log_offset % 2**64).to_bytes(8, "big")).hex().upper()


def property_value(properties: bytes, name: str) -> str | None:
    """Return the value of one property of the stored text, without decoding the others."""
    start = value_begin(properties, name.encode() + b"\x01")
    if start < 0:
        return None
    end = properties.find(b"\x02", start)
    value = properties[start:end] if end >= 0 else properties[start:]
    return value.decode("utf-8", "replace") or None


def value_begin(properties: bytes, mark: bytes) -> int:
    """Return where the value of a property begins, or -1. `mark`: its name and 0x01.

    If the property occurs more than once, the last one counts.
    """
    at = properties.rfind(b"\x02" + mark)
    if at >= 0:
        return at + 1 + len(mark)
    return len(mark) if properties.startswith(mark) else -1
