"""A scan of commit-log bytes that reads of each record only what reconciliation asks for.

Receives bytes and the log offset at which they begin; hands on one tuple per record (`COLUMNS`).
Refuses to know files and Spark. It is written against the format alone (`wire/record.py`), not
against the broker's own reader: reconciliation must not inherit a mistake of what it audits.

Roles: a `first` delivery is a record in an ordinary topic. Topics of the system hold copies:
`delayed` (still in a delay queue), `retry` and `retry delayed` (a failed attempt, to be delivered
again), `dead` (a dead letter). `system` is anything else there. `damaged` is a stretch of the log
that is no record though the log goes on behind it.

Source of the format: Apache RocketMQ `MessageDecoder`, `CommitLog`, `MixAll`, `TopicValidator`.
"""

import struct
import zlib
from enum import Enum
from typing import Any, NamedTuple

from reliable_mq.errors import RecordError
from reliable_mq.limits import RECORD_SIZE_MAX
from reliable_mq.wire.message_id import ledger_id
from reliable_mq.wire.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    REAL_TOPIC,
    TAGS,
    UNIQ_KEY,
    decode_properties,
)
from reliable_mq.wire.record import (
    BLANK_MAGIC,
    BORN_HOST_V6,
    COMPRESSED,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Record,
    decode_record,
)

RETRY_PREFIX = "%RETRY%"
DEAD_PREFIX = "%DLQ%"
DELAY_TOPICS = frozenset({"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"})
SYSTEM_TOPICS = frozenset(
    {
        *("TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC"),
        *("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        *("TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"),
        "DefaultHeartBeatSyncerTopic",
    }
)
SYSTEM_PREFIXES = ("rmq_sys_", "%LMQ%")
DEAD_LETTER_REASON = "DEAD_LETTER_REASON"

FIRST, DELAYED, RETRY, RETRY_DELAYED = "first", "delayed", "retry", "retry delayed"
DEAD, SYSTEM, DAMAGED = "dead", "system", "damaged"


class LogRow(NamedTuple):
    """What a scan tells of one record. Times are milliseconds since the epoch, sizes bytes.

    `message_id` is what a consumer calls the message: the producer's UNIQ_KEY, or else the offset
    message id of its first delivery; see `ledger_id`.

    `topic` is the topic the message was sent to, as far as the record says; `queue_topic` and
    `queue_id` are the queue that holds the record. `content_crc` is computed from the body as it
    lies there, after decompression, and None when it was not asked for or cannot be known;
    `body_crc` is what the record says of itself.
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


class End(Enum):
    """Why a scan ended."""

    CUT = "the bytes end inside a record"
    BLANK = "the rest of the segment is blank"
    INVALID = "no record begins here"


_HEAD_V4 = struct.Struct(">iIIi4xqqiq8xq8xi8xi")  # wire/record.py draws it; both hosts IPv4
_HEAD_V4_SIZE = _HEAD_V4.size
_SIZE_AND_MAGIC = struct.Struct(">iI")
_PHYSICAL_OFFSET_AT = 28
_STORE_HOST_AT, _STORE_HOST_SIZE = 64, 8
_V6 = BORN_HOST_V6 | STORE_HOST_V6
_CRC_MASK = 0x7FFFFFFF
_COMPRESSION_MASK = 0x700
_ZLIB = (0x000, 0x300)
_UNPACKED_SIZE_MAX = 64 * 1024 * 1024
_INVISIBLE = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


def damaged(log_offset: int, size: int) -> LogRow:
    """Return the row of a stretch of the log that is no record."""
    return LogRow(DAMAGED, log_offset, size)


def scan(buffer: bytes, log_offset: int, *, check_body: bool) -> tuple[list[LogRow], int, End]:
    """Read the records that lie one after another from the beginning of `buffer`.

    Args:
        buffer: bytes of one segment; the first is where a record begins.
        log_offset: the log offset of the first byte; every record must say the same of itself.
        check_body: whether to compute `content_crc`.

    Returns:
        The rows, how many bytes they took, and why the scan ended.
    """
    rows: list[LogRow] = []
    at, length = 0, len(buffer)
    while True:
        if length - at < _SIZE_AND_MAGIC.size:
            return rows, at, End.CUT
        size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
        if magic not in (MAGIC_V1, MAGIC_V2):
            return rows, at, End.BLANK if magic == BLANK_MAGIC else End.INVALID
        if not RECORD_SIZE_MIN <= size <= RECORD_SIZE_MAX:
            return rows, at, End.INVALID
        if size > length - at:
            return rows, at, End.CUT
        row = _row(buffer, at, size, magic, log_offset + at, check_body)
        if row is None:
            return rows, at, End.INVALID
        rows.append(row)
        at += size


def find_record(buffer: bytes, log_offset: int) -> int | None:
    """Return where in `buffer` a record begins that knows its own log offset, or None.

    This is how a scan finds its way after damage: the four bytes of a magic number may occur in any
    body, but hardly together with the right log offset 24 bytes later.
    """
    found: list[int] = []
    for magic in (MAGIC_V1, MAGIC_V2):
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


def _row(
    buffer: bytes, at: int, size: int, magic: int, log_offset: int, check_body: bool
) -> LogRow | None:
    head = _HEAD_V4.unpack_from(buffer, at)
    if magic == MAGIC_V2 or head[6] & _V6:
        return _unusual_row(buffer, at, log_offset, check_body)
    (_, _, body_crc, queue_id, queue_offset, says, sys_flag, born_time, store_time) = head[:9]
    reconsume_times, body_size = head[9:]
    body_at = at + _HEAD_V4_SIZE
    topic_at = body_at + body_size + 1
    end = at + size
    if says != log_offset or body_size < 0 or topic_at + 2 > end:
        return None
    properties_at = topic_at + buffer[topic_at - 1] + 2
    properties = buffer[properties_at:end]
    if properties_at > end or int.from_bytes(
        buffer[properties_at - 2 : properties_at], "big"
    ) != len(properties):
        return None
    body = buffer[body_at : topic_at - 1] if check_body else b""
    return _described(
        buffer[topic_at : properties_at - 2],
        properties,
        (queue_id, queue_offset, log_offset, size, sys_flag, reconsume_times),
        (born_time, store_time, body_size, body_crc),
        content_crc(body, sys_flag) if check_body else None,
        buffer[at + _STORE_HOST_AT : at + _STORE_HOST_AT + _STORE_HOST_SIZE],
    )


def _unusual_row(buffer: bytes, at: int, log_offset: int, check_body: bool) -> LogRow | None:
    """Read a record with IPv6 hosts or a long topic: rare, so the plain decoder is good enough."""
    try:
        record: Record = decode_record(buffer, at)
    except RecordError:
        return None
    if record.commit_log_offset != log_offset:
        return None
    return _described(
        record.topic.encode(),
        record.properties,
        (
            *(record.queue_id, record.queue_offset, log_offset),
            *(record.size, record.sys_flag, record.reconsume_times),
        ),
        (record.born_time_ms, record.store_time_ms, len(record.body), record.body_crc),
        content_crc(record.body, record.sys_flag) if check_body else None,
        record.store_host,
    )


def content_crc(body: bytes, sys_flag: int) -> int | None:
    """Return the checksum of the body as it was sent, or None when its compression is unknown.

    A body that claims to be a zlib stream and is none has the checksum of what it is.
    """
    if sys_flag & COMPRESSED:
        if sys_flag & _COMPRESSION_MASK not in _ZLIB:
            return None
        unpacking = zlib.decompressobj()
        try:
            body = unpacking.decompress(body, _UNPACKED_SIZE_MAX)
        except zlib.error:
            return zlib.crc32(body) & _CRC_MASK
        if unpacking.unconsumed_tail:  # nobody sends a body like that; do not fill the memory
            return None
    return zlib.crc32(body) & _CRC_MASK


def _described(
    topic_bytes: bytes,
    properties: bytes,
    place: tuple[int, int, int, int, int, int],
    times_and_body: tuple[int, int, int, int],
    crc: int | None,
    store_host: bytes,
) -> LogRow:
    queue_topic = topic_bytes.decode("utf-8", "replace")
    delay_level: int | None = None
    reason: str | None = None
    role, topic, group = FIRST, queue_topic, None
    if _is_special(queue_topic) or place[4] & TRANSACTION_MASK in _INVISIBLE:
        names = decode_properties(properties)
        role, topic, group = _role(queue_topic, names)
        level = names.get(DELAY, "")
        delay_level = int(level) if level.isdigit() else None
        reason = names.get(DEAD_LETTER_REASON)
    queue_id, queue_offset, log_offset, size, sys_flag, reconsume_times = place
    return LogRow(
        role,
        log_offset,
        size,
        topic,
        group,
        ledger_id(
            property_value(properties, UNIQ_KEY)
            or _id_without_key(properties, role, store_host, log_offset)
        ),
        property_value(properties, TAGS),
        queue_topic,
        queue_id,
        queue_offset,
        sys_flag,
        reconsume_times,
        delay_level,
        *times_and_body,
        crc,
        reason,
    )


def _id_without_key(properties: bytes, role: str, store_host: bytes, log_offset: int) -> str:
    """Return what a consumer calls a message whose producer gave it no UNIQ_KEY.

    The offset message id of its first delivery; copies carry that of the first one as a property.
    """
    origin = None if role == FIRST else property_value(properties, ORIGIN_MESSAGE_ID)
    return origin or (store_host + log_offset.to_bytes(8, "big")).hex().upper()


def _is_special(topic: str) -> bool:
    return (
        topic.startswith("%")
        or topic in DELAY_TOPICS
        or topic in SYSTEM_TOPICS
        or topic.startswith(SYSTEM_PREFIXES)
    )


def _role(queue_topic: str, properties: dict[str, Any]) -> tuple[str, str, str | None]:
    """Return (role, topic the message was sent to, consumer group) of a record that is a copy."""
    origin = properties.get("RETRY_TOPIC", queue_topic)
    if queue_topic.startswith(RETRY_PREFIX):
        return RETRY, origin, queue_topic.removeprefix(RETRY_PREFIX)
    if queue_topic.startswith(DEAD_PREFIX):
        return DEAD, origin, queue_topic.removeprefix(DEAD_PREFIX)
    if queue_topic in DELAY_TOPICS:
        real = properties.get(REAL_TOPIC, queue_topic)
        if real.startswith(RETRY_PREFIX):
            return RETRY_DELAYED, origin, real.removeprefix(RETRY_PREFIX)
        return DELAYED, real, None
    return SYSTEM, queue_topic, None


def property_value(properties: bytes, name: str) -> str | None:
    """Return the value of one property of the stored text without reading the others."""
    mark = name.encode() + b"\x01"
    at = properties.rfind(b"\x02" + mark)
    if at >= 0:
        start = at + 1 + len(mark)
    elif properties.startswith(mark):
        start = len(mark)
    else:
        return None
    end = properties.find(b"\x02", start)
    value = properties[start:end] if end >= 0 else properties[start:]
    return value.decode("utf-8", "replace") or None
