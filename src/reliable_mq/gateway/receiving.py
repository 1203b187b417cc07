"""Records of a broker as the messages that a client receives. Pure.

Receives the answer to a pop or a pull. Returns messages of `apache.rocketmq.v2`, or their bytes.
Source: Apache RocketMQ `GrpcConverter`, `MQClientAPIImpl.processPopResponse`.
"""

from binascii import hexlify
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import md5
from typing import Any, NamedTuple

from reliable_mq.errors import ReliableMQError
from reliable_mq.gateway.codes import KindOfMessage
from reliable_mq.gateway.field_bytes import field_tags, known_text, sized, timestamp, varint
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.sending import BORN_HOST, TRACE_CONTEXT
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.message_digest import RESERVED
from reliable_mq.wire import properties as p
from reliable_mq.wire.compression import decompress
from reliable_mq.wire.pop_answer import handles_of
from reliable_mq.wire.pop_handle import NORMAL, message_place
from reliable_mq.wire.record import Record, address_of, iter_records, unpack_host

_MD5, _IDENTITY, _GZIP = 2, 1, 2
_COMPRESSED, _OTHER_KIND = 0x1, 0x300
_ZLIB = (0x0, 0x300)
_INT32_MAX = 2**31 - 1
_DIGITS_MAX = 18
_OF_DELAYS = (p.DELAY, p.TIMER_DELIVER_MS, p.TIMER_DELAY_SEC)
_NOT_THE_USERS = RESERVED | {
    *(p.KEYS, p.TAGS, p.UNIQ_KEY, p.SHARDING_KEY, p.BORN_TIMESTAMP, p.CORRELATION_ID),
    *(p.REPLY_TO_CLIENT, BORN_HOST, TRACE_CONTEXT, "INSTANCE_ID", "TTL", "MSG_TYPE"),
}
_M, _S, _DEAD = map(field_tags, ("Message", "SystemProperties", "DeadLetterQueue"))
_NAME = field_tags("Resource")["name"]
_USER, _SYSTEM, _BODY = _M["user_properties"], _M["system_properties"], _M["body"]
_ID, _OFFSET, _ATTEMPT = _S["message_id"], _S["queue_offset"], _S["delivery_attempt"]
_HANDLE = _S["receipt_handle"]
# All of a digest before its 32 digits.
_CHECKSUM = sized(field_tags("Digest")["checksum"], b"0" * 32)
_BORN, _BORN_HOST = _S["born_timestamp"], _S["born_host"]
_STORED = _S["store_timestamp"]
_DIGEST = sized(_S["body_digest"], field_tags("Digest")["type"] + varint(_MD5) + _CHECKSUM)[:-32]


@lru_cache(maxsize=1024)
def _place(store_host: bytes, queue_id: int) -> bytes:
    """Return the fields with the broker and the queue."""
    host = address_of(*unpack_host(store_host)).encode()
    return sized(_S["store_host"], host) + _S["queue_id"] + varint(queue_id)


@lru_cache(maxsize=64)
def _nature(encoding: int, kind: int) -> bytes:
    """Return the fields with the encoding of a body and the kind of its message."""
    return _S["body_encoding"] + varint(encoding) + _S["message_type"] + varint(kind)


class PoppedMessage(NamedTuple):
    """A message that was handed out. `check`: its `POP_CK`, without the offset in the log."""

    record: Record
    properties: dict[str, str]
    check: str
    attempts: int

    @property
    def handle(self) -> str:
        """The receipt handle."""
        return f"{self.check} {self.record.commit_log_offset}"


def _by_queue(text: str | None) -> dict[tuple[str, str], str]:
    """Return the values of "kind queue value;…" by kind and queue."""
    found: dict[tuple[str, str], str] = {}
    for part in (text or "").split(";"):
        fields = part.split(" ")
        if len(fields) == 3:
            found[fields[0], fields[1]] = fields[2]
    return found


def popped_of(
    ext: Mapping[str, str], body: bytes, topic: str, broker: str
) -> Iterator[PoppedMessage]:
    """Yield the messages in the answer to a pop of `topic`.

    Raises:
        ProtocolError: when a field of the answer is missing, or the body is not whole records.
    """
    counts = _by_queue(ext.get("orderCountInfo"))
    records = list(iter_records(body))
    for record, handle in zip(records, handles_of(ext, records, topic, broker), strict=True):
        attempts, kind = record.reconsume_times, handle.kind
        if counts and kind == NORMAL:  # a copy from a retry topic counts its attempts itself
            place = message_place(record.queue_id, record.queue_offset)
            count = counts.get((kind, place)) or counts.get((kind, str(record.queue_id)))
            attempts = max(attempts, _number(count))
        yield PoppedMessage(record, record.property_map(), handle.text(), attempts)


def message_of(record: Record, found: Mapping[str, str], attempts: int) -> Any:
    """Return a record as a message; see `encode_message`."""
    return TYPES["Message"].FromString(encode_message(record, found, attempts, record.topic))


def encode_message(
    record: Record, found: Mapping[str, str], attempts: int, topic: str, handle: str = ""
) -> bytes:
    """Return a record as the bytes of a message.

    Args:
        record: as the broker stores it.
        found: its properties.
        attempts: how many times it was handed out before.
        topic: the one that its consumer asks for.
        handle: its receipt handle; "": it has none.
    """
    body, encoding = _body_of(record)
    parts = [known_text(_M["topic"], _NAME, topic)]
    for name, value in found.items():
        if name not in _NOT_THE_USERS:
            pair = sized(b"\x0a", name.encode()) + sized(b"\x12", value.encode())
            parts += (_USER, varint(len(pair)), pair)
    system = b"".join(_system_of(record, found, attempts, handle, body, encoding))
    parts += (_SYSTEM, varint(len(system)), system)
    if body:
        parts += (_BODY, varint(len(body)), body)
    return b"".join(parts)


def _system_of(
    record: Record, found: Mapping[str, str], attempts: int, handle: str, body: bytes, encoding: int
) -> list[bytes]:
    """Return the fields of a message that are not its topic, its body or its sender's own."""
    get = found.get
    message_id = (get(p.UNIQ_KEY) or record.offset_message_id()).encode()
    born_host = get(BORN_HOST, "").strip() or unpack_host(record.born_host)[0]
    parts = [
        *(_ID, varint(len(message_id)), message_id),
        *(_DIGEST, hexlify(md5(body, usedforsecurity=False).digest()).upper()),
        _nature(encoding, kind_of(found)),
        timestamp(_BORN, record.born_time_ms),
        known_text(_BORN_HOST, b"", born_host),
        timestamp(_STORED, record.store_time_ms),
        _place(record.store_host, record.queue_id),
        *(_OFFSET, varint(record.queue_offset)),
        *(_ATTEMPT, varint(min(attempts + 1, _INT32_MAX))),
    ]
    if handle:
        text = handle.encode()
        parts += (_HANDLE, varint(len(text)), text)
    if not found.keys().isdisjoint(_RARE):
        parts += _rare_of(found)
    return parts


_RARE = (p.TAGS, p.KEYS, p.SHARDING_KEY, p.TIMER_DELIVER_MS, TRACE_CONTEXT, "DLQ_ORIGIN_TOPIC")


def _rare_of(found: Mapping[str, str]) -> list[bytes]:
    """Return the fields that only some messages have."""
    parts: list[bytes] = []
    tag, keys, group = found.get(p.TAGS), found.get(p.KEYS), found.get(p.SHARDING_KEY)
    if tag:
        parts.append(known_text(_S["tag"], b"", tag))
    if keys:
        parts += (sized(_S["keys"], key.encode()) for key in keys.split(" "))
    if group:
        parts.append(sized(_S["message_group"], group.encode()))
    if due := _number(found.get(p.TIMER_DELIVER_MS)):
        parts.append(timestamp(_S["delivery_timestamp"], due))
    if trace := found.get(TRACE_CONTEXT):
        parts.append(sized(_S["trace_context"], trace.encode()))
    origin, origin_id = found.get("DLQ_ORIGIN_TOPIC"), found.get("DLQ_ORIGIN_MESSAGE_ID")
    if origin and origin_id:
        dead = sized(_DEAD["topic"], origin.encode()) + sized(
            _DEAD["message_id"], origin_id.encode()
        )
        parts.append(sized(_S["dead_letter_queue"], dead))
    return parts


def kind_of(found: Mapping[str, str]) -> KindOfMessage:
    """Return what kind of message has these properties."""
    if found.get(p.TRANSACTION_PREPARED) == "true":
        return KindOfMessage.TRANSACTION
    if not found.keys().isdisjoint(_OF_DELAYS):
        return KindOfMessage.DELAY
    return KindOfMessage.FIFO if p.SHARDING_KEY in found else KindOfMessage.NORMAL


def _body_of(record: Record) -> tuple[bytes, int]:
    """Return a body that every client can read, and its encoding.

    Clients know zlib, by the name GZIP. Bodies in LZ4 or ZSTD are decompressed here.
    """
    if not record.sys_flag & _COMPRESSED:
        return record.body, _IDENTITY
    if record.sys_flag & _OTHER_KIND not in _ZLIB:
        try:
            return decompress(record.body, record.sys_flag, MESSAGE_BODY_SIZE_MAX), _IDENTITY
        except (
            ReliableMQError
        ):  # its library is not installed, or it is damaged: the client says so
            return record.body, _GZIP
    return record.body, _GZIP


def _number(text: str | None) -> int:
    """Return the number in a text that somebody else has written; 0 if it is none that is used."""
    return int(text) if text and len(text) <= _DIGITS_MAX and text.isdecimal() else 0
