"""Records of a broker as the messages that a client receives. Pure.

Receives the answer to a pop or a pull. Returns messages of `apache.rocketmq.v2`.
Source: Apache RocketMQ `GrpcConverter`, `MQClientAPIImpl.processPopResponse`.
"""

from collections.abc import Iterator, Mapping
from hashlib import md5
from typing import Any, NamedTuple

from reliable_mq.errors import ReliableMQError
from reliable_mq.gateway.codes import KindOfMessage
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
_YEAR_9999_MS = 253_402_300_799_999  # the last that a timestamp of protobuf has
_NOT_THE_USERS = RESERVED | {
    *(p.KEYS, p.TAGS, p.UNIQ_KEY, p.SHARDING_KEY, p.BORN_TIMESTAMP, p.CORRELATION_ID),
    *(p.REPLY_TO_CLIENT, BORN_HOST, TRACE_CONTEXT, "INSTANCE_ID", "TTL", "MSG_TYPE"),
}


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
        if kind == NORMAL:  # a copy from a retry topic counts its attempts itself
            queue = str(record.queue_id)
            count = counts.get((kind, message_place(record.queue_id, record.queue_offset)))
            attempts = max(attempts, _number(count or counts.get((kind, queue))))
        yield PoppedMessage(record, record.property_map(), handle.text(), attempts)


def message_of(record: Record, found: Mapping[str, str], attempts: int, handle: str = "") -> Any:
    """Return a record as a message.

    Args:
        record: as the broker stores it.
        found: its properties.
        attempts: how many times it was handed out before.
        handle: its receipt handle; "": it has none.
    """
    body, encoding = _body_of(record)
    message = TYPES["Message"](body=body)
    message.topic.name = record.topic
    for name, value in found.items():
        if name not in _NOT_THE_USERS:
            message.user_properties[name] = value
    system = message.system_properties
    system.message_id = found.get(p.UNIQ_KEY) or record.offset_message_id()
    system.body_digest.type = _MD5
    system.body_digest.checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = encoding
    system.message_type = kind_of(found)
    tag = found.get(p.TAGS)
    if tag:
        system.tag = tag
    keys = found.get(p.KEYS)
    if keys:
        system.keys.extend(keys.split(" "))
    _set_ms(system.born_timestamp, record.born_time_ms)
    born_host = found.get(BORN_HOST, "").strip()
    system.born_host = born_host or unpack_host(record.born_host)[0]
    _set_ms(system.store_timestamp, record.store_time_ms)
    system.store_host = address_of(*unpack_host(record.store_host))
    due = _number(found.get(p.TIMER_DELIVER_MS))
    if due:
        _set_ms(system.delivery_timestamp, due)
    group = found.get(p.SHARDING_KEY)
    if group:
        system.message_group = group
    if handle:
        system.receipt_handle = handle
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = min(attempts + 1, _INT32_MAX)
    trace = found.get(TRACE_CONTEXT)
    if trace:
        system.trace_context = trace
    origin, origin_id = found.get("DLQ_ORIGIN_TOPIC"), found.get("DLQ_ORIGIN_MESSAGE_ID")
    if origin and origin_id:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = origin, origin_id
    return message


def kind_of(found: Mapping[str, str]) -> KindOfMessage:
    """Return what kind of message has these properties."""
    if found.get(p.TRANSACTION_PREPARED) == "true":
        return KindOfMessage.TRANSACTION
    if not found.keys().isdisjoint({p.DELAY, p.TIMER_DELIVER_MS, p.TIMER_DELAY_SEC}):
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


def _set_ms(timestamp: Any, ms: int) -> None:
    ms = min(max(ms, 0), _YEAR_9999_MS)
    timestamp.seconds, timestamp.nanos = ms // 1000, ms % 1000 * 1_000_000
