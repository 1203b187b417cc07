"""The record of a popped message from a retry topic, as its consumer gets it.

Receives a stored record. Returns it with the topic that the consumer asked for, and with its
handle. Source: Apache RocketMQ `PopMessageProcessor`.
"""

import struct

from reliable_mq.wire.properties import NAME_VALUE_SEPARATOR, POP_CK, PROPERTY_SEPARATOR
from reliable_mq.wire.record import (
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_V1_LENGTH_MAX,
    body_end_in,
    decode_record,
)

_SIZE_AND_MAGIC = struct.Struct(">iI")
_I16 = struct.Struct(">h")
_I16_MAX = 2**15 - 1
_NAME = f"{POP_CK}{NAME_VALUE_SEPARATOR}".encode()
_END = PROPERTY_SEPARATOR.encode()


def with_handle(record: bytes, topic: str, handle: str) -> bytes:
    """Return a record with another topic, and with a handle in place of any other one.

    Raises:
        RecordError: when it is no record.
    """
    properties = decode_record(record).properties
    if properties.startswith(_NAME) or _END + _NAME in properties:  # of an earlier pop
        pairs = properties.split(_END)
        properties = _END.join([pair for pair in pairs if not pair.startswith(_NAME)])
    if properties and not properties.endswith(_END):
        properties += _END
    properties += _NAME + handle.encode() + _END
    if len(properties) > _I16_MAX:  # the consumer makes the handle from the reply's fields
        properties = decode_record(record).properties
    name = topic.encode()
    is_short = len(name) <= TOPIC_V1_LENGTH_MAX
    length = bytes((len(name),)) if is_short else _I16.pack(len(name))
    body_end = body_end_in(record)
    tail = length + name + _I16.pack(len(properties)) + properties
    head = _SIZE_AND_MAGIC.pack(body_end + len(tail), MAGIC_V1 if is_short else MAGIC_V2)
    return head + record[_SIZE_AND_MAGIC.size : body_end] + tail
