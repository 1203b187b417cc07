"""The body of a call: how large it may be, and the call in it. Pure.

A message of a few bytes becomes an object of many. So what a body holds is counted before it is
decoded.
"""

from typing import Any

from reliable_mq.errors import ReliableMQError
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.message_types import TYPES, DecodeError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX

PREFIX_SIZE = 5
ENTRIES_MAX = 1024
"""The most messages or entries of one call."""
CALL_SIZE_MAX = 512 * 1024
"""The most bytes of a call,"""
SEND_SIZE_MAX = MESSAGE_BODY_SIZE_MAX + 256 * 1024
"""and of a SendMessage."""

_INTERNAL, _UNIMPLEMENTED = 13, 12
_OTHER_FIELDS_MAX = 16
_VARINT, _LONG, _SIZED, _BEGIN, _END, _SHORT = 0, 1, 2, 3, 4, 5  # how a field is written
_MORE = 0x80
_KINDS: Any = {name[:-7]: kind for name, kind in TYPES.items() if name.endswith("Request")}
CALLS = frozenset(_KINDS)
"""The names of all calls with one request."""


class BodyRefused(ReliableMQError):
    """A body holds no call; the stream ends with this status of gRPC."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def size_max_of(name: str) -> int:
    """Return how many bytes the body of a call may have."""
    return (SEND_SIZE_MAX if name == "SendMessage" else CALL_SIZE_MAX) + PREFIX_SIZE


def decode_call(name: str, body: bytes | bytearray) -> Any:
    """Return the call in a body.

    Raises:
        BodyRefused: when there is none.
        RpcRefused: when it has more entries than a call may have.
    """
    if len(body) < PREFIX_SIZE or int.from_bytes(body[1:PREFIX_SIZE]) != len(body) - PREFIX_SIZE:
        raise BodyRefused(_INTERNAL, "the request is not one whole message")
    if body[0]:
        raise BodyRefused(_UNIMPLEMENTED, "compressed requests are not understood")
    most = ENTRIES_MAX + _OTHER_FIELDS_MAX
    if len(body) > most and has_many_fields(body, PREFIX_SIZE, most):  # a field has a byte or more
        raise RpcRefused(
            Code.BAD_REQUEST, f"a call has at most {ENTRIES_MAX} messages or entries: make several"
        )
    try:
        return _KINDS[name].FromString(bytes(memoryview(body)[PREFIX_SIZE:]))
    except DecodeError as error:
        raise BodyRefused(_INTERNAL, "the request cannot be decoded") from error


def has_many_fields(body: bytes | bytearray, at: int, most: int) -> bool:
    """Whether there are more fields than `most`, without those in other messages."""
    count, end = 0, len(body)
    while at < end:
        count += 1
        if count > most:
            return True
        key, at = _number_at(body, at)
        kind = key & 7
        if kind == _SIZED:
            size, at = _number_at(body, at)
            at += size
        elif kind == _VARINT:
            _, at = _number_at(body, at)
        elif kind in {_LONG, _SHORT}:
            at += 8 if kind == _LONG else 4
        elif kind not in {_BEGIN, _END}:
            return False  # nothing that is known: it cannot be decoded
    return False


def _number_at(body: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return a number and where the next byte is; it ends after ten bytes, or with the body."""
    number = 0
    for place, byte in enumerate(body[at : at + 10]):
        number |= (byte & 0x7F) << (7 * place)
        if not byte & _MORE:
            return number, at + place + 1
    return number, len(body)
