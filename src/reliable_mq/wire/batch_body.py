"""The body of a batch send: many messages of one topic in one request.

    repeated: TOTALSIZE i32 | MAGIC i32 = 0 | BODYCRC i32 = 0 | FLAG i32 | BODYLENGTH i32, body
              | PROPERTIESLENGTH i16, properties

The broker stores each message as its own record. Source: Apache RocketMQ `MessageDecoder`.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from reliable_mq.errors import MessageRefused, RecordError
from reliable_mq.limits import PROPERTIES_SIZE_MAX
from reliable_mq.wire.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, UNIQ_KEY
from reliable_mq.wire.rows import columns_of

_HEAD = struct.Struct(">iiiii")
_I16 = struct.Struct(">h")
_HEAD_SIZE = _HEAD.size
_FIXED_SIZE = _HEAD_SIZE + _I16.size
_UNIQ_KEY = f"{UNIQ_KEY}{NAME_VALUE_SEPARATOR}".encode()
_END = PROPERTY_SEPARATOR.encode()


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


class BatchColumns(NamedTuple):
    """The messages of a batch, field by field. Item n of each sequence belongs to message n."""

    flags: Sequence[int]
    bodies: Sequence[bytes]
    properties: Sequence[bytes]


def decode_batch(buffer: bytes) -> list[BatchItem]:
    """Return the messages of a batch.

    Raises:
        RecordError: when the bytes are not a batch.
    """
    return list(map(BatchItem, *decode_columns(buffer)))


def decode_columns(buffer: bytes) -> BatchColumns:
    """Return the messages of a batch as columns, for storing together (a broker's hot path).

    Raises:
        RecordError: when the bytes are not a batch.
    """
    return _decode_uniform(buffer) or _decode_any(buffer)


def _decode_uniform(buffer: bytes) -> BatchColumns | None:
    """Return the messages of a batch whose items have equal lengths; None for any other batch.

    Many programs send messages of equal lengths. One `struct` call decodes such a batch.
    """
    if len(buffer) < _FIXED_SIZE:
        return None
    size, _magic, _crc, _flag, body_length = _HEAD.unpack_from(buffer)
    count, rest = divmod(len(buffer), size) if size > 0 else (0, 1)
    if rest or count < 2 or not 0 <= body_length <= size - _FIXED_SIZE:
        return None
    properties_length = size - _FIXED_SIZE - body_length
    columns = list(zip(*_uniform(body_length, properties_length).iter_unpack(buffer), strict=True))
    lengths = (columns[0], columns[4], columns[6])
    expected = (size, body_length, properties_length)
    if any(column.count(length) != count for column, length in zip(lengths, expected, strict=True)):
        return None
    return BatchColumns(columns[3], columns[5], columns[7])


class AlikeBatch(NamedTuple):
    """The messages of a batch that differ only in body and unique key, each of one length.

    `before` and `behind` are the properties around the value of the unique key.
    """

    flag: int
    bodies: Sequence[bytes]
    before: bytes
    keys: Sequence[bytes]
    behind: bytes


def decode_alike(buffer: bytes) -> AlikeBatch | None:
    """Return the messages of a batch of one client that sends alike ones; None for any other.

    Each unique key is a whole value of letters and digits. `decode_columns` gives the same.
    """
    if len(buffer) < _FIXED_SIZE:
        return None
    size, _magic, _crc, flag, body_length = _HEAD.unpack_from(buffer)
    count, rest = divmod(len(buffer), size) if size > 0 else (0, 1)
    if rest or count < 2 or not 0 <= body_length <= size - _FIXED_SIZE:
        return None
    body_end = _HEAD_SIZE + body_length
    begin = body_end + _I16.size
    key_at = buffer.find(_UNIQ_KEY, begin, size)
    is_name = key_at == begin or buffer[key_at - 1 : key_at] == _END
    key_at += len(_UNIQ_KEY)
    key_end = buffer.find(_END, key_at, size)
    if not is_name or key_at < begin or key_end <= key_at:
        return None
    if int.from_bytes(buffer[body_end:begin]) != size - begin:
        return None
    head, middle, behind = buffer[:_HEAD_SIZE], buffer[body_end:key_at], buffer[key_end:size]
    # The second one tells of most batches that are not alike, before anything is copied.
    if not (
        buffer.startswith(head, size)
        and buffer.startswith(middle, size + body_end)
        and buffer.startswith(behind, size + key_end)
    ):
        return None
    form = f"{_HEAD_SIZE}s{body_length}s{len(middle)}s{key_end - key_at}s{len(behind)}s"
    heads, bodies, middles, keys, behinds = columns_of(form, 5, buffer, 0, count)
    are_alike = (
        heads.count(head) == count
        and middles.count(middle) == count
        and behinds.count(behind) == count
    )
    if not (are_alike and b"".join(keys).isalnum()):
        return None
    return AlikeBatch(flag, bodies, middle[_I16.size :], keys, behind)


@lru_cache(maxsize=64)
def _uniform(body_length: int, properties_length: int) -> struct.Struct:
    return struct.Struct(f">iiiii{body_length}sh{properties_length}s")


def _decode_any(buffer: bytes) -> BatchColumns:
    flags: list[int] = []
    bodies: list[bytes] = []
    properties: list[bytes] = []
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
            flags.append(flag)
            bodies.append(buffer[body_at:body_end])
            properties.append(buffer[body_end + 2 : end])
            at = end
    except struct.error as error:
        raise RecordError(f"the batch ends within the item at {at}") from error
    return BatchColumns(flags, bodies, properties)
