"""The body of a call: how large it may be, and the call in it. Pure.

A message of a few bytes becomes an object of many. So what a body holds is counted before it is
decoded.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from reliable_mq.errors import ReliableMQError
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.message_types import TYPES, DecodeError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX

PREFIX_SIZE = 5
ENTRIES_MAX = 1024
"""The most messages or entries of one call."""
CALL_SIZE_MAX = 512 * 1024
"""The most bytes of an AckMessage, and of a call with a filter,"""
SHORT_SIZE_MAX = 64 * 1024
"""of another call,"""
SEND_SIZE_MAX = MESSAGE_BODY_SIZE_MAX + 256 * 1024
"""and of a SendMessage."""
ABOUT_SIZE_MAX = 1024 * 1024
"""The most bytes of a SendMessage without the bodies of its messages,"""
ABOUT_FIELDS_MAX = 20_000
"""and the most fields of all its messages: each property is one."""

_INTERNAL, _UNIMPLEMENTED = 13, 12
_OTHER_FIELDS_MAX = 16
_VARINT, _LONG, _SIZED, _BEGIN, _END, _SHORT = 0, 1, 2, 3, 4, 5  # how a field is written
_MORE = 0x80
_LONG_CALLS = frozenset({"AckMessage", "ReceiveMessage", "PullMessage"})
_UNCOUNTED_SIZE = 512 * 1024  # as much is decoded in 12 ms, whatever it holds
_KINDS: Any = {name[:-7]: kind for name, kind in TYPES.items() if name.endswith("Request")}
CALLS = frozenset(_KINDS)
"""The names of all calls with one request."""
_MESSAGES, _BODY = (
    TYPES[kind].DESCRIPTOR.fields_by_name[field].number << 3 | _SIZED
    for kind, field in (("SendMessageRequest", "messages"), ("Message", "body"))
)


class BodyRefused(ReliableMQError):
    """A body holds no call; the stream ends with this status of gRPC."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def size_max_of(name: str) -> int:
    """Return how many bytes the body of a call may have."""
    if name == "SendMessage":
        return SEND_SIZE_MAX + PREFIX_SIZE
    return (CALL_SIZE_MAX if name in _LONG_CALLS else SHORT_SIZE_MAX) + PREFIX_SIZE


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
    if name == "SendMessage" and len(body) > _UNCOUNTED_SIZE and says_too_much(body, PREFIX_SIZE):
        raise RpcRefused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the messages of a call have at most {ABOUT_SIZE_MAX} bytes and {ABOUT_FIELDS_MAX}"
            " fields besides their bodies",
        )
    try:
        return _KINDS[name].FromString(bytes(memoryview(body)[PREFIX_SIZE:]))
    except DecodeError as error:
        raise BodyRefused(_INTERNAL, "the request cannot be decoded") from error


def has_many_fields(body: bytes | bytearray, at: int, most: int) -> bool:
    """Whether there are more fields than `most`, without those in other messages."""
    return next(islice(_fields(body, at, len(body)), most, None), None) is not None


def says_too_much(body: bytes | bytearray, at: int) -> bool:
    """Whether the messages of a SendMessage have too much besides their bodies.

    A property of two bytes takes as long as one of a hundred.
    """
    size, count, whole = 0, 0, len(body)
    for key, begin, end in _fields(body, at, whole):
        if key != _MESSAGES:
            size += min(end, whole) - begin
            continue
        for inner, inner_begin, inner_end in _fields(body, begin, min(end, whole)):
            count += 1
            if inner != _BODY:
                size += min(inner_end, whole) - inner_begin
            if count > ABOUT_FIELDS_MAX or size > ABOUT_SIZE_MAX:
                return True
    return size > ABOUT_SIZE_MAX


def _fields(body: bytes | bytearray, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the key of each field, and where its content begins and ends; not those within them.

    It ends early at what is not known: that cannot be decoded.
    """
    whole = len(body)
    while at < end:
        key = body[at]
        if key < _MORE and key & 7 == _SIZED and at + 1 < whole and body[at + 1] < _MORE:  # usual
            begin = at + 2
            at = begin + body[at + 1]
            yield key, begin, at
            continue
        key, at = _number_at(body, at)
        kind, begin = key & 7, at
        if kind == _SIZED:
            size, begin = _number_at(body, at)
            at = begin + size
        elif kind == _VARINT:
            _, at = _number_at(body, at)
        elif kind in {_LONG, _SHORT}:
            at += 8 if kind == _LONG else 4
        elif kind not in {_BEGIN, _END}:
            yield key, begin, at
            return
        yield key, begin, at


def _number_at(body: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return a number and where the next byte is; it ends after ten bytes, or with the body."""
    number = 0
    for place, byte in enumerate(body[at : at + 10]):
        number |= (byte & 0x7F) << (7 * place)
        if not byte & _MORE:
            return number, at + place + 1
    return number, len(body)
