"""Fields of protobuf as bytes, for the answers that are written most. Pure.

An object of protobuf that is filled field by field costs several times as much as its bytes.
Source: the encoding of protobuf (protobuf.dev, "Encoding"); `message_facts` has the fields.
"""

from functools import lru_cache
from typing import Any

from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.message_types import TYPES

_SMALL, _TWO_BYTES, _THREE_BYTES = 2048, 1 << 14, 1 << 21
_KEPT_LENGTH_MAX = 255
_MORE, _BITS = 0x80, 0x7F
_I64_MASK = 2**64 - 1
_YEAR_9999_MS = 253_402_300_799_999  # the last that a timestamp of protobuf has
_SIZED_TYPES = frozenset({9, 11, 12})  # texts, messages and bytes have their size before them


class EncodedAnswer:
    """Bytes that stand for an object of protobuf.

    Args:
        data: the bytes.
        code: how the call has ended; None: this answer does not say it.
    """

    __slots__ = ("_data", "code")

    def __init__(self, data: bytes, code: Code | None = None) -> None:
        self._data, self.code = data, code

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return the bytes."""
        return self._data


def code_of(answer: Any) -> int | None:
    """Return how a call has ended, by one of its answers; None: this one does not say it."""
    if isinstance(answer, EncodedAnswer):
        return answer.code
    return answer.status.code if answer.HasField("status") else None


def _long_varint(number: int) -> bytes:
    number &= _I64_MASK
    found = bytearray()
    while number >= _MORE:
        found.append(number & _BITS | _MORE)
        number >>= 7
    found.append(number)
    return bytes(found)


_SMALL_VARINTS = [_long_varint(number) for number in range(_SMALL)]


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it; a negative one has ten bytes."""
    if 0 <= number < _SMALL:
        return _SMALL_VARINTS[number]
    if 0 < number < _TWO_BYTES:
        return bytes((number & _BITS | _MORE, number >> 7))
    if 0 < number < _THREE_BYTES:
        return bytes((number & _BITS | _MORE, number >> 7 & _BITS | _MORE, number >> 14))
    return _long_varint(number)


def field_tags(kind: str) -> dict[str, bytes]:
    """Return what stands before each field of a message: its number, and how it is written."""
    return {
        each.name: varint(each.number << 3 | (2 if each.type in _SIZED_TYPES else 0))
        for each in TYPES[kind].DESCRIPTOR.fields
    }


def sized(tag: bytes, data: bytes) -> bytes:
    """Return a field with a text, bytes or a message."""
    return b"".join((tag, varint(len(data)), data))


def known_text(tag: bytes, inner: bytes, text: str) -> bytes:
    """Return a field with a text that many messages have; `inner`: its field in a message there."""
    return (_kept_text if len(text) <= _KEPT_LENGTH_MAX else _encode_text)(tag, inner, text)


def _encode_text(tag: bytes, inner: bytes, text: str) -> bytes:
    data = text.encode()
    return sized(tag, sized(inner, data) if inner else data)


_kept_text = lru_cache(maxsize=1024)(_encode_text)


@lru_cache(maxsize=256)
def _seconds(seconds: int) -> bytes:
    return b"\x08" + varint(seconds) if seconds else b""


_NANOS = [b"", *(b"\x10" + _long_varint(ms * 1_000_000) for ms in range(1, 1000))]


@lru_cache(maxsize=256)
def timestamp(tag: bytes, ms: int) -> bytes:
    """Return a field with a time, given in milliseconds since the epoch.

    Messages that are stored together, and are born together, have the same times.
    """
    ms = min(max(ms, 0), _YEAR_9999_MS)
    data = _seconds(ms // 1000) + _NANOS[ms % 1000]
    return b"".join((tag, _SMALL_VARINTS[len(data)], data))


def _status(code: Code) -> bytes:
    tags = field_tags("Status")
    return tags["code"] + varint(code) + sized(tags["message"], code.name.encode())


STATUS_OK = _status(Code.OK)
"""A status that says that all is well."""
