"""Offset message ids: the broker's name for a stored message.

Upper-case hex of `ip (4 or 16 bytes) | port i32 | commit-log offset i64`. A client that has such an
id knows which broker to ask for the message. Source: Apache RocketMQ `MessageDecoder`.
"""

import re
import struct
from typing import NamedTuple

from reliable_mq.errors import RecordError

_PORT_AND_OFFSET = struct.Struct(">iq")
_ID = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{56}")


class OffsetMessageId(NamedTuple):
    """Where a stored message is: the broker's packed address and the commit-log offset."""

    ip: bytes
    port: int
    commit_log_offset: int


def encode_offset_message_id(ip: bytes, port: int, commit_log_offset: int) -> str:
    """Return 32 (IPv4) or 56 (IPv6) upper-case hex digits."""
    return (ip + _PORT_AND_OFFSET.pack(port, commit_log_offset)).hex().upper()


def decode_offset_message_id(text: str) -> OffsetMessageId:
    """Return the parts of an offset message id.

    Raises:
        RecordError: when the text is none.
    """
    if not _ID.fullmatch(text):
        raise RecordError(f"{text[:80]!r} is no offset message id")
    packed = bytes.fromhex(text)
    ip_size = len(packed) - _PORT_AND_OFFSET.size
    port, commit_log_offset = _PORT_AND_OFFSET.unpack_from(packed, ip_size)
    return OffsetMessageId(packed[:ip_size], port, commit_log_offset)
