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
from reliable_mq.wire.addresses import address_of
from reliable_mq.wire.compression import decompress
from reliable_mq.wire.pop_answer import handles_of
from reliable_mq.wire.pop_handle import NORMAL, message_place
from reliable_mq.wire.properties import decode_properties
from reliable_mq.wire.record import Record, iter_records, unpack_host

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
_ENCODINGS = {each: _S["body_encoding"] + varint(each) for each in (_IDENTITY, _GZIP)}
_KEY_NAME, _BORN_NAME = f"{p.UNIQ_KEY}\x01".encode(), f"{p.BORN_TIMESTAMP}\x01".encode()
_KEY_AT, _BORN_SIZE, _END = len(_KEY_NAME), len(_BORN_NAME), b"\x02"
_REST_SIZE_MAX = 512  # of properties that are read once: 256 of them are kept
_DIGEST = sized(_S["body_digest"], field_tags("Digest")["type"] + varint(_MD5) + _CHECKSUM)[:-32]


@lru_cache(maxsize=1024)
def _place(store_host: bytes, queue_id: int) -> bytes:
    """Return the fields with the broker and the queue."""
    host = address_of(*unpack_host(store_host)).encode()
    return sized(_S["store_host"], host) + _S["queue_id"] + varint(queue_id)


class Said(NamedTuple):
    """What the properties of a message say to its consumer, besides its unique key.

    `user`: the fields with what its sender has added. `kind` is that of the message. `born_host`:
    the host that they name; "": none. `rare`: the fields that only some messages have.
    """

    tag: str | None
    user: bytes
    kind: bytes
    born_host: str
    rare: bytes


class PoppedMessage(NamedTuple):
    """A message that was handed out. `check`: its `POP_CK`, without the offset in the log.

    `unique_key`: "" if it has none.
    """

    record: Record
    unique_key: str
    said: Said
    check: str
    attempts: int

    @property
    def message_id(self) -> str:
        """What the client knows it by."""
        return self.unique_key or self.record.offset_message_id()

    @property
    def handle(self) -> str:
        """The receipt handle."""
        return f"{self.check} {self.record.commit_log_offset}"


def said_in(properties: bytes) -> tuple[str, Said]:
    """Return the unique key in the properties of a record, and what else they say.

    The messages of a client differ in their unique key, which is the first property, and in the
    time of their birth, which the record has, too. The rest is read once.
    """
    end = properties.find(_END, _KEY_AT)
    if end <= _KEY_AT or not properties.startswith(_KEY_NAME):
        return _said_by(properties)
    key, rest = properties[_KEY_AT:end], properties[end + 1 :]
    born_at = rest.find(_BORN_NAME)
    if born_at == 0 or (born_at > 0 and rest[born_at - 1] == _END[0]):
        born, _, behind = rest[born_at + _BORN_SIZE :].partition(_END)
        if born.isdigit():
            rest = rest[:born_at] + behind
    if len(rest) > _REST_SIZE_MAX or not key.isalnum() or _KEY_NAME in rest:
        return _said_by(properties)
    return key.decode(), _said_by_rest(rest)


def _said_by(properties: bytes) -> tuple[str, Said]:
    found = decode_properties(properties)
    return found.get(p.UNIQ_KEY, ""), said_by(found)


@lru_cache(maxsize=256)
def _said_by_rest(rest: bytes) -> Said:
    return said_by(decode_properties(rest))


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
        yield PoppedMessage(record, *said_in(record.properties), handle.text(), attempts)


def message_of(record: Record, found: Mapping[str, str], attempts: int) -> Any:
    """Return a record as a message; see `encode_message`.

    Args:
        record: as the broker stores it.
        found: its properties.
        attempts: how many times it was handed out before.
    """
    message_id = found.get(p.UNIQ_KEY) or record.offset_message_id()
    data = _encode(record, message_id, said_by(found), attempts, record.topic, "")
    return TYPES["Message"].FromString(data)


def encode_message(popped: PoppedMessage, topic: str) -> bytes:
    """Return a message that was handed out as bytes.

    Args:
        popped: it.
        topic: the one that its consumer asks for.
    """
    record, _, said, _, attempts = popped
    return _encode(record, popped.message_id, said, attempts, topic, popped.handle)


def _encode(
    record: Record, message_id: str, said: Said, attempts: int, topic: str, handle: str
) -> bytes:
    """Return the bytes of a message; `handle` is "" if it has none."""
    body, encoding = _body_of(record)
    unique = message_id.encode()
    system = b"".join(
        (
            *(_ID, varint(len(unique)), unique),
            *(_DIGEST, hexlify(md5(body, usedforsecurity=False).digest()).upper()),
            *(_ENCODINGS[encoding], said.kind),
            timestamp(_BORN, record.born_time_ms),
            known_text(_BORN_HOST, b"", said.born_host or unpack_host(record.born_host)[0]),
            timestamp(_STORED, record.store_time_ms),
            _place(record.store_host, record.queue_id),
            *(_OFFSET, varint(record.queue_offset)),
            *(_ATTEMPT, varint(min(attempts + 1, _INT32_MAX))),
            sized(_HANDLE, handle.encode()) if handle else b"",
            said.rare,
        )
    )
    head = known_text(_M["topic"], _NAME, topic)
    parts = (head, said.user, _SYSTEM, varint(len(system)), system, _BODY, varint(len(body)), body)
    return b"".join(parts if body else parts[:5])


def said_by(found: Mapping[str, str]) -> Said:
    """Return what properties say besides the unique key."""
    pairs = (
        sized(b"\x0a", name.encode()) + sized(b"\x12", value.encode())
        for name, value in found.items()
        if name not in _NOT_THE_USERS
    )
    user = b"".join(sized(_USER, pair) for pair in pairs)
    kind = _S["message_type"] + varint(kind_of(found))
    rare = b"" if found.keys().isdisjoint(_RARE) else b"".join(_rare_of(found))
    born_host = found.get(BORN_HOST, "").strip()
    return Said(found.get(p.TAGS), user, kind, born_host, rare)


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
