"""Frequent commands, decoded in one pass: the fields of their header become one object.

These are sends, pulls, acknowledgements, and the replies to sends and pulls, with a JSON header as
Apache's fastjson writes it. Any other command is left to `command.decode_command`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.limits import SHORT_HEADER_SIZE
from reliable_mq.wire.command import UNREADABLE, Command, check_field_count, decode_command
from reliable_mq.wire.frame import JSON, Frame
from reliable_mq.wire.headers import (
    PullMessageHeader,
    PullResultHeader,
    SendMessageHeaderV2,
    SendResultHeader,
    SignedSendHeader,
)
from reliable_mq.wire.pop_headers import AckMessageHeader


def _hidden(name: str, **default: Any) -> Any:
    """Rename a field on the wire, so that a header cannot set it."""
    return msgspec.field(name=f"({name})", **default)


class _Typed(Command, gc=False, kw_only=True):
    """A command with a JSON header that is decoded in one pass, its fields as one object."""

    ext_fields: dict[str, str] = _hidden("ext_fields", default_factory=dict)
    body: bytes = _hidden("body", default=b"")
    serialize_type: int = _hidden("serialize_type", default=JSON)
    send_header: SendMessageHeaderV2 | None = _hidden("send_header", default=None)
    pull_header: PullMessageHeader | None = _hidden("pull_header", default=None)
    ack_header: AckMessageHeader | None = _hidden("ack_header", default=None)
    send_result: SendResultHeader | None = _hidden("send_result", default=None)
    pull_result: PullResultHeader | None = _hidden("pull_result", default=None)


@decodable
class _Send(_Typed, gc=False, kw_only=True):
    """A send."""

    send_header: SendMessageHeaderV2 | None = msgspec.field(name="extFields")


@decodable
class _Pull(_Typed, gc=False, kw_only=True):
    """A pull."""

    pull_header: PullMessageHeader | None = msgspec.field(name="extFields")


@decodable
class _Ack(_Typed, gc=False, kw_only=True):
    """An acknowledgement of a popped message."""

    ack_header: AckMessageHeader | None = msgspec.field(name="extFields")


@decodable
class _SendResult(_Typed, gc=False, kw_only=True):
    """The reply to a send."""

    send_result: SendResultHeader | None = msgspec.field(name="extFields")


@decodable
class _PullResult(_Typed, gc=False, kw_only=True):
    """The reply to a pull that found messages."""

    pull_result: PullResultHeader | None = msgspec.field(name="extFields")


_SENDS = (b'{"code":310,', b'{"code":320,')  # SEND_MESSAGE_V2 and batches, as fastjson writes them
_PULLS = (b'{"code":11,', b'{"code":361,')  # PULL_MESSAGE, LITE_PULL_MESSAGE
_ACK = b'{"code":200051,'  # ACK_MESSAGE
_decode_json_send = msgspec.json.Decoder(_Send, strict=False).decode
_decode_json_pull = msgspec.json.Decoder(_Pull, strict=False).decode
_decode_json_ack = msgspec.json.Decoder(_Ack, strict=False).decode


def decode_request(frame: Frame) -> Command:
    """Return the command in `frame`; sends, pulls and acknowledgements have typed headers.

    This is a broker's hot path.

    If a typed header does not parse, the general decoder reads it and reports the fault.

    Raises:
        FrameError: when the header is not in the format that the frame names.
    """
    header = frame.header
    if frame.serialize_type == JSON:
        if header.startswith(_SENDS):
            return _decode_typed(_decode_json_send, frame)
        if header.startswith(_PULLS):
            return _decode_typed(_decode_json_pull, frame)
        if header.startswith(_ACK):
            return _decode_typed(_decode_json_ack, frame)
    return decode_command(frame)


_NO_FRAME = Frame(JSON, b"", b"")


@decodable
class SignedSend(_Typed, gc=False, kw_only=True):
    """A send with a signature, its fields as one object. `frame` has the same fields as texts."""

    send_header: SignedSendHeader = msgspec.field(name="extFields")
    frame: Frame = _hidden("frame", default=_NO_FRAME)

    def in_general(self) -> Command:
        """Return the same request with its fields as texts."""
        return decode_command(self.frame)


_decode_json_signed_send = msgspec.json.Decoder(SignedSend, strict=False).decode


def decode_signed_request(frame: Frame) -> Command:
    """Return the command in `frame`; a send with the fields of Apache's client is a `SignedSend`.

    Every other request has its fields as texts: a signature covers fields that no header knows.

    Raises:
        FrameError: when the header is not in the format that the frame names.
    """
    header = frame.header
    if frame.serialize_type == JSON and header.startswith(_SENDS):
        command = _decode_typed(_decode_json_signed_send, frame)
        if type(command) is SignedSend:
            command.frame = frame
        return command
    return decode_command(frame)


_STORED = b'{"code":0,"extFields":{'  # how fastjson begins a successful reply with fields
_OF_A_SEND, _OF_A_PULL = b'"queueOffset":', b'"nextBeginOffset":'
_decode_json_send_result = msgspec.json.Decoder(_SendResult, strict=False).decode
_decode_json_pull_result = msgspec.json.Decoder(_PullResult, strict=False).decode


def decode_reply(frame: Frame) -> Command:
    """Return the command in `frame`; replies to sends and pulls may have typed headers.

    This is a client's hot path.

    If a typed header does not parse, the general decoder reads it and reports the fault.

    Raises:
        FrameError: when the header is not in the format that the frame names.
    """
    header = frame.header
    if frame.serialize_type == JSON and header.startswith(_STORED):
        if _OF_A_SEND in header:
            return _decode_typed(_decode_json_send_result, frame)
        if _OF_A_PULL in header:
            return _decode_typed(_decode_json_pull_result, frame)
    return decode_command(frame)


def _decode_typed(decode: Callable[[bytes], Command], frame: Frame) -> Command:
    """Return the command that `decode` reads; if `decode` fails, use the general decoder."""
    if len(frame.header) > SHORT_HEADER_SIZE:
        check_field_count(frame.header)
    try:
        command = decode(frame.header)
    except UNREADABLE:
        return decode_command(frame)
    command.body = frame.body
    command.serialize_type = JSON
    return command
