"""Reads fields of a stored record without its body.

It receives the first bytes of a record, or those before and behind the body.
`record` documents the format.
"""

import struct

from reliable_mq.errors import RecordError
from reliable_mq.wire.properties import decode_properties
from reliable_mq.wire.record import (
    FIXED_BY_FLAGS,
    HOST_V6_FLAGS,
    RECORD_MAGICS,
    SYS_FLAG_AT,
    topic_length_at,
)

_STORE_TIME = 10  # the place of STORETIMESTAMP among the fields before the body
_SIZE_AND_MAGIC = struct.Struct(">iI")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


def body_end_in(head: bytes) -> int:
    """Return the end of a record's body, in bytes from the start of the record.

    With `properties_behind_body` a caller reads the properties without the body.

    Args:
        head: the first `RECORD_HEAD_SIZE_MAX` bytes of the record.

    Raises:
        RecordError: when the bytes are not the head of a record.
    """
    fixed = _fixed_of(head)
    (body_length,) = _I32.unpack_from(head, fixed.size - _I32.size)
    if body_length < 0:
        raise RecordError("no record begins here")
    return fixed.size + int(body_length)


def store_time_in(head: bytes) -> int:
    """Return when a record was stored, in milliseconds.

    Args:
        head: the first `RECORD_HEAD_SIZE_MAX` bytes of the record.

    Raises:
        RecordError: when the bytes are not the head of a record.
    """
    return int(_fixed_of(head).unpack_from(head)[_STORE_TIME])


def _fixed_of(head: bytes) -> struct.Struct:
    """Return what reads the fields before the body, of which `head` has all bytes."""
    try:
        (host_flags,) = _I32.unpack_from(head, SYS_FLAG_AT)
        fixed = FIXED_BY_FLAGS[host_flags & HOST_V6_FLAGS]
        magic = record_magic(head)
    except struct.error as error:
        raise RecordError(f"{len(head)} bytes are not the head of a record") from error
    if len(head) < fixed.size or magic not in RECORD_MAGICS:
        raise RecordError("no record begins here")
    return fixed


def record_magic(head: bytes) -> int:
    """Return the magic number in a record's first bytes."""
    return int(_SIZE_AND_MAGIC.unpack_from(head)[1])


def properties_behind_body(head: bytes, tail: bytes) -> dict[str, str]:
    """Return the properties of a record from its first bytes and from all bytes after its body.

    Raises:
        RecordError: when the lengths do not add up.
    """
    try:
        topic_length, topic_at = topic_length_at(tail, 0, record_magic(head))
        (length,) = _I16.unpack_from(tail, topic_at + topic_length)
    except (struct.error, IndexError) as error:
        raise RecordError("a record ends before its properties") from error
    begin = topic_at + topic_length + _I16.size
    if topic_length < 0 or length < 0 or begin + length != len(tail):
        raise RecordError("the lengths after the body of a record do not add up")
    return decode_properties(tail[begin:])
