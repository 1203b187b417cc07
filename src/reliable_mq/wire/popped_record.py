"""The properties that only a broker gives popped messages, and the records with their handles.

Nobody else may write them: whoever writes a handle makes a consumer acknowledge other messages.
Receives stored records and properties; returns changed ones.
Source: Apache RocketMQ `PopMessageProcessor`, `SendMessageProcessor.clearReservedProperties`.
"""

import re
import struct

from reliable_mq.wire.properties import (
    FIRST_POP_TIME,
    NAME_VALUE_SEPARATOR,
    POP_CK,
    POP_CK_OFFSET,
    PROPERTY_SEPARATOR,
)
from reliable_mq.wire.record import MAGIC_V1, MAGIC_V2, TOPIC_V1_LENGTH_MAX, decode_record
from reliable_mq.wire.record_head import body_end_in

_SIZE_AND_MAGIC = struct.Struct(">iI")
_I16 = struct.Struct(">h")
_I16_MAX = 2**15 - 1
_NAME = f"{POP_CK}{NAME_VALUE_SEPARATOR}".encode()
_END = PROPERTY_SEPARATOR.encode()
_IN_ALL = b"POP_"  # the names have it in common, and other properties hardly ever
_names = f"{POP_CK}|{POP_CK_OFFSET}|{FIRST_POP_TIME}"
_without = re.compile(f"(?:^|(?<=\x02))(?:{_names})\x01[^\x02]*(?:\x02|\\Z)".encode()).sub
_without_handle = re.compile(b"(?:^|(?<=\x02))" + _NAME + b"[^\x02]*(?:\x02|\\Z)").sub


def may_have_pop_properties(data: bytes) -> bool:
    """Whether properties, alone or many together, may have a name of popped messages."""
    return _IN_ALL in data


def without_pop_properties(properties: bytes) -> bytes:
    """Return properties without those of popped messages."""
    return _without(b"", properties) if _IN_ALL in properties else properties


def has_handle(body: bytes) -> bool:
    """Whether one of some records may have a handle."""
    return _NAME in body


def with_handle(record: bytes, topic: str, handle: str) -> bytes:
    """Return a record with another topic, and with this handle and no other.

    Args:
        record: as it is stored.
        topic: the new one.
        handle: "": the message gets none.

    Raises:
        RecordError: when it is no record.
    """
    properties = _without_handle(b"", decode_record(record).properties)
    own = _NAME + handle.encode() + _END if handle else b""
    if own and properties and not properties.endswith(_END):
        own = _END + own
    if len(properties) + len(own) <= _I16_MAX:  # else the consumer reads the reply's fields
        properties += own
    name = topic.encode()
    is_short = len(name) <= TOPIC_V1_LENGTH_MAX
    length = bytes((len(name),)) if is_short else _I16.pack(len(name))
    body_end = body_end_in(record)
    tail = length + name + _I16.pack(len(properties)) + properties
    head = _SIZE_AND_MAGIC.pack(body_end + len(tail), MAGIC_V1 if is_short else MAGIC_V2)
    return head + record[_SIZE_AND_MAGIC.size : body_end] + tail
