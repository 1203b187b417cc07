"""The plain reading of records in commit-log bytes: of each only what reconciliation asks for.

Receives bytes and where records begin; hands on one tuple per record (`LogRow`).
Refuses to know files and Spark. It is written against the format alone (`wire/record.py`), not
against the broker's own reader: reconciliation must not inherit a mistake of what it audits.

What the roles mean is told in `log_roles`. `log_columns` reads many records at once, and comes here
for what is rare; of every other record it must say the same.

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
    """What a scan tells of one record. Times are milliseconds since the epoch, sizes bytes.

    `message_id` is what a consumer calls the message: the producer's UNIQ_KEY, or else the offset
    message id of its first delivery; see `ledger_id`.

    `topic` is the topic the message was sent to, as far as the record says; `queue_topic` and
    `queue_id` are the queue that holds the record. `content_crc` is computed from the body as it
    lies there, after decompression, and None when it was not asked for or cannot be known;
    `body_crc` is what the record says of itself. `due_time` is when a broker is to deliver a copy
    that waits, None of all others. `message_digest` is that of a first delivery or of a delayed
    one, where the body is read; see `message_digest.py`.
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
    """Return the row of a stretch of the log that is no record."""
    return LogRow(DAMAGED, log_offset, size)


def record_starts(buffer: bytes) -> tuple[list[int], int, ScanEnd]:
    """Walk over what claims to be records, from the beginning of `buffer`, by their sizes alone.

    Returns:
        Where each begins, where the walk ended, and why.
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
    """Return where in `buffer` a record begins that knows its own log offset, or None.

    This is how a scan finds its way after damage: the four bytes of a magic number may occur in any
    body, but hardly together with the right log offset 24 bytes later.
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
    """Return when a record was stored, by its first `HEAD_SIZE_MAX` bytes; None: it is none."""
    if len(head) < HEAD_SIZE_MAX or _SIZE_AND_MAGIC.unpack_from(head)[1] not in _MAGICS:
        return None
    is_v6 = int.from_bytes(head[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big") & BORN_HOST_V6
    at = _STORE_TIME_AT + (_V6_MORE if is_v6 else 0)
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def read_row(
    buffer: bytes, at: int, log_offset: int | None, *, check_body: bool, customs: RecordContext
) -> LogRow | None:
    """Return what the record at `at` says, or None when it is none.

    Args:
        buffer: holds it whole, as `record_starts` found it.
        at: where it begins.
        log_offset: what it has to say of its place; None: whatever it says is believed.
        check_body: whether to compute `content_crc`.
        customs: of the broker whose record it is.
    """
    head = _HEAD_V4.unpack_from(buffer, at)
    if head[1] == MAGIC_V2 or head[6] & (BORN_HOST_V6 | STORE_HOST_V6):
        return _unusual_row(buffer, at, log_offset, check_body, customs)
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
        customs,
    )


def _unusual_row(
    buffer: bytes, at: int, log_offset: int | None, check_body: bool, customs: RecordContext
) -> LogRow | None:
    """Read a record with IPv6 hosts or a long topic: rare, so the plain decoder is good enough."""
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
        customs,
    )


def content_of(body: bytes, sys_flag: int) -> bytes | None:
    """Return a body as it was sent, or None when nothing here can unpack it.

    A body that claims to be compressed and is not is what it is.
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
    return unpacked if len(unpacked) < _UNPACKED_SIZE_MAX else None  # nobody sends such a body


def content_crc(content: bytes) -> int:
    """Return the checksum of a body as it was sent."""
    return zlib.crc32(content) & _CRC_MASK


def stored_digest(topic: str, properties: bytes, content: bytes | memoryview) -> bytes:
    """Return the digest of a message as ledgers have it."""
    return digest_of_stored(topic, properties, body_hash_of(content))[:DIGEST_SIZE]


def _described(
    topic_bytes: bytes,
    properties: bytes,
    place_and_size: tuple[int, int, int, int, int, int],
    times_and_body: tuple[int, int, int, int],
    body: bytes | None,
    store_host: bytes,
    customs: RecordContext,
) -> LogRow:
    queue_topic = topic_bytes.decode("utf-8", "replace")
    queue_id, queue_offset, log_offset, size, sys_flag, reconsume_times = place_and_size
    role, reason = RecordRole(FIRST, queue_topic), None
    if is_special(queue_topic) or sys_flag & TRANSACTION_MASK in INVISIBLE:
        names = decode_properties(properties)
        place = RecordPlace(queue_topic, queue_id, queue_offset, log_offset, times_and_body[1])
        role = role_of(place, names, customs)
        reason = names.get(DEAD_LETTER_REASON)
    is_first = role.role == FIRST
    content = None if body is None else content_of(body, sys_flag)
    digest = None
    if content is not None and role.role in (FIRST, DELAYED):
        digest = stored_digest(role.topic, properties, content)
    return LogRow(
        role_of_first(queue_topic, queue_id, log_offset, customs) if is_first else role.role,
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
    """Return what a consumer calls a message whose producer gave it no UNIQ_KEY.

    The offset message id of its first delivery; copies carry that of the first one as a property.
    """
    origin = None if role == FIRST else property_value(properties, ORIGIN_MESSAGE_ID)
    return origin or (store_host + (log_offset % 2**64).to_bytes(8, "big")).hex().upper()


def property_value(properties: bytes, name: str) -> str | None:
    """Return the value of one property of the stored text without reading the others."""
    start = value_begin(properties, name.encode() + b"\x01")
    if start < 0:
        return None
    end = properties.find(b"\x02", start)
    value = properties[start:end] if end >= 0 else properties[start:]
    return value.decode("utf-8", "replace") or None


def value_begin(properties: bytes, mark: bytes) -> int:
    """Return where the value of the last property begins whose name and 0x01 are `mark`, or -1."""
    at = properties.rfind(b"\x02" + mark)
    if at >= 0:
        return at + 1 + len(mark)
    return len(mark) if properties.startswith(mark) else -1
