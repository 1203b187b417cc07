"""Message ids: offset message ids, and ids that fit into the tables of ledgers.

An offset message id is the broker's name for a stored message: upper-case hex of
`ip (4 or 16 bytes) | port i32 | commit-log offset i64`. From such an id a client knows
the broker that has the message. Source: Apache RocketMQ `MessageDecoder`.
"""

import hashlib
import re
import struct
from typing import NamedTuple

from reliable_mq.errors import RecordError

LEDGER_ID_LENGTH_MAX = 64
"""Length in characters of the longest message id that fits into the tables of consumers."""

_PORT_AND_OFFSET = struct.Struct(">iq")
_ID = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{56}")
is_usual_id = re.compile(r"[0-9A-F]{32}|[0-9A-F]{56}").fullmatch
"""Returns a match for the id that a client or a broker makes. Ledgers know it as it is."""


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
        RecordError: when the text is not an offset message id.
    """
    if not _ID.fullmatch(text):
        raise RecordError(f"{text[:80]!r} is not an offset message id")
    packed = bytes.fromhex(text)
    ip_size = len(packed) - _PORT_AND_OFFSET.size
    port, commit_log_offset = _PORT_AND_OFFSET.unpack_from(packed, ip_size)
    return OffsetMessageId(packed[:ip_size], port, commit_log_offset)


def ledger_id(message_id: str) -> str:
    """Return the id under which consumers and ledgers know a message with this message id.

    An id of a foreign producer may be too long for a table, or contain characters that databases
    refuse (PostgreSQL refuses NUL). Then the result is its SHA-256 in 64 hex digits.
    """
    if len(message_id) <= LEDGER_ID_LENGTH_MAX and message_id.isprintable():
        return message_id
    return hashlib.sha256(message_id.encode("utf-8", "surrogatepass")).hexdigest().upper()
