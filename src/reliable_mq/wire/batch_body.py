"""The body of a batch send: many messages of one topic in one request.

    repeated: TOTALSIZE i32 | MAGIC i32 = 0 | BODYCRC i32 = 0 | FLAG i32 | BODYLENGTH i32, body
              | PROPERTIESLENGTH i16, properties

The broker stores each as a record of its own. Source: Apache RocketMQ `MessageDecoder`.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from reliable_mq.errors import MessageRefused, RecordError
from reliable_mq.limits import PROPERTIES_SIZE_MAX

_HEAD = struct.Struct(">iiiii")
_I16 = struct.Struct(">h")
_HEAD_SIZE = _HEAD.size
_FIXED_SIZE = _HEAD_SIZE + _I16.size


class BatchItem(NamedTuple):
    """One message of a batch; `properties` is the stored text."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Return the request body for `items`.

    Raises:
        MessageRefused: when an item's properties are longer than a record can hold.
    """
    parts: list[bytes] = []
    for flag, body, properties in items:
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise MessageRefused(
                f"properties of {len(properties)} bytes; a record holds {PROPERTIES_SIZE_MAX}"
            )
        size = _FIXED_SIZE + len(body) + len(properties)
        parts += (
            _HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _I16.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(buffer: bytes) -> list[BatchItem]:
    """Return the messages of a batch.

    Raises:
        RecordError: when the bytes are no batch.
    """
    items: list[BatchItem] = []
    unpack, unpack_length, available = _HEAD.unpack_from, _I16.unpack_from, len(buffer)
    at = 0
    try:
        while at < available:
            size, _magic, _crc, flag, body_length = unpack(buffer, at)
            body_at = at + _HEAD_SIZE
            body_end = body_at + body_length
            (properties_length,) = unpack_length(buffer, body_end)
            end = body_end + 2 + properties_length
            if body_length < 0 or properties_length < 0 or end != at + size or end > available:
                raise RecordError(f"the lengths of the batch item at {at} do not add up to {size}")
            items.append(BatchItem(flag, buffer[body_at:body_end], buffer[body_end + 2 : end]))
            at = end
    except struct.error as error:
        raise RecordError(f"the batch ends within the item at {at}") from error
    return items
