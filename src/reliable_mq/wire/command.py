"""Commands: the requests and replies of a connection.

Two header formats carry the same fields. A reply uses the format of its request:

    JSON       {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,
                "serializeTypeCurrentRPC":"JSON","version":493}
    ROCKETMQ   numbers and sized texts: see `compact_header`

Flag bit 0 marks a reply, bit 1 a request without a reply. `opaque` links a reply to its request; it
is a counter of the sender. Source: Apache RocketMQ `RemotingCommand`.
"""

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import FrameError
from reliable_mq.limits import FIELDS_MAX, SHORT_HEADER_SIZE, SLOW_TEXT_SIZE_MAX
from reliable_mq.wire.compact_header import decode_compact, encode_compact
from reliable_mq.wire.frame import JSON, ROCKETMQ, Frame, encode_frame
from reliable_mq.wire.headers import (
    PullMessageHeader,
    PullResultHeader,
    SendMessageHeaderV2,
    SendResultHeader,
)
from reliable_mq.wire.java_int import I32
from reliable_mq.wire.pop_headers import AckMessageHeader

VERSION = 493  # MQVersion.V5_4_0; clients enable SQL92 and more by the version in replies
LANGUAGE = "PYTHON"

REPLY_FLAG = 0b01
ONE_WAY_FLAG = 0b10


@decodable
class Command(msgspec.Struct, rename={"ext_fields": "extFields"}, gc=False):
    """One request or reply.

    All values of `ext_fields` are text ("true", "42"), as the protocol says. A field that is not in
    a JSON header has its default. `body` and `serialize_type` come from the frame, never from the
    header. `decode_request` and `decode_reply` may put the fields of a send, a pull or an
    acknowledgement into `send_header`, `pull_header` or `ack_header` instead of `ext_fields`, and
    those of a reply into `send_result` or `pull_result`.
    """

    code: I32
    opaque: I32 = 0
    flag: I32 = 0
    language: str = "OTHER"
    version: I32 = 0
    remark: str | None = None
    ext_fields: dict[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""
    serialize_type: int = JSON
    send_header: SendMessageHeaderV2 | None = None
    pull_header: PullMessageHeader | None = None
    ack_header: AckMessageHeader | None = None
    send_result: SendResultHeader | None = None
    pull_result: PullResultHeader | None = None

    @property
    def is_reply(self) -> bool:
        """Whether this is a reply to a request of this side."""
        return bool(self.flag & REPLY_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no reply."""
        return bool(self.flag & ONE_WAY_FLAG)


def request(
    code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, oneway: bool = False
) -> Command:
    """Return a new request; the session that sends it sets `opaque`."""
    return Command(
        code=code,
        flag=ONE_WAY_FLAG if oneway else 0,
        language=LANGUAGE,
        version=VERSION,
        ext_fields=dict(ext) if ext else {},
        body=body,
    )


def reply(
    to: Command,
    code: int = 0,
    remark: str | None = None,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """Return a reply to `to`, in the header format of `to`."""
    return Command(
        code=code,
        opaque=to.opaque,
        flag=REPLY_FLAG,
        language=LANGUAGE,
        version=VERSION,
        remark=remark,
        ext_fields=dict(ext) if ext else {},
        body=body,
        serialize_type=to.serialize_type,
    )


class _JsonHeader(msgspec.Struct):
    """The JSON format; the names are in the order of Apache's fastjson."""

    code: int
    extFields: dict[str, str] | msgspec.UnsetType  # noqa: N815 - the name on the wire
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    serializeTypeCurrentRPC: str  # noqa: N815
    version: int


_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What a decoder of JSON raises when it does not understand a header."""

_decode_json = msgspec.json.Decoder(Command).decode
_encode_json = msgspec.json.Encoder().encode


def decode_command(frame: Frame) -> Command:
    """Return the command in `frame`.

    Raises:
        FrameError: when the header is not in the format that the frame names.
    """
    if frame.serialize_type == JSON:
        if len(frame.header) > SHORT_HEADER_SIZE:
            _check_field_count(frame.header)
        try:
            command = _decode_json(frame.header)
        except _UNREADABLE:
            command = _decode_json_of_any_shape(frame.header)
    elif frame.serialize_type == ROCKETMQ:
        code, language, version, opaque, flag, remark, fields = decode_compact(frame.header)
        command = Command(code, opaque, flag, language, version, remark, fields)
    else:
        raise FrameError(f"unknown serialize type {frame.serialize_type}")
    command.body = frame.body
    command.serialize_type = frame.serialize_type
    command.send_header = command.pull_header = command.ack_header = None
    command.send_result = command.pull_result = None
    return command


def _check_field_count(header: bytes) -> None:
    """Raise `FrameError` when a JSON header has too many fields, before the fields are decoded.

    A field has four unescaped quotes. A name or value that ends with a backslash hides a quote, so
    a peer can get at most twice the number of fields accepted.
    """
    quotes = header.count(b'"') - header.count(b'\\"')
    if quotes > 4 * (FIELDS_MAX + len(_NAMES)):
        raise FrameError(f"the header is not a command: it has more than {FIELDS_MAX} fields")


def encode_command(command: Command) -> bytes:
    """Return the whole frame of `command`.

    The ROCKETMQ format has 16 bits for the code. Higher bits are dropped, as Apache does.

    Raises:
        FrameError: when the frame would be longer than 16 MiB, or when a field does not fit into
            the format.
    """
    try:
        if command.serialize_type == JSON:
            header = _encode_json_header(command)
        elif command.serialize_type == ROCKETMQ:
            header = encode_compact(command)
        else:
            raise FrameError(f"unknown serialize type {command.serialize_type}")
    except UnicodeEncodeError as error:
        raise FrameError("the header contains half a surrogate pair") from error
    except struct.error as error:
        raise FrameError(
            "a name or a number of the header is too large for the ROCKETMQ format"
        ) from error
    return encode_frame(command.serialize_type, header, command.body)


def _encode_json_header(command: Command) -> bytes:
    return _encode_json(
        _JsonHeader(
            command.code,
            command.ext_fields or msgspec.UNSET,
            command.flag,
            command.language,
            command.opaque,
            msgspec.UNSET if command.remark is None else command.remark,
            "JSON",
            command.version,
        )
    )


def _decode_json_of_any_shape(header: bytes) -> Command:
    """Decode unusual headers: null or numeric ext values, null fields, half surrogate pairs."""
    if len(header) > SLOW_TEXT_SIZE_MAX:
        raise FrameError(
            f"the header is not a command, or is in a form that is read only up to "
            f"{SLOW_TEXT_SIZE_MAX} bytes: {header[:80]!r}"
        )
    try:
        readable = _ESCAPE.sub(_without_half, header)
        fields = msgspec.json.decode(readable, type=dict[str, object])
        known = {name: fields[name] for name in _NAMES if fields.get(name) is not None}
        ext = msgspec.convert(fields.get("extFields") or {}, dict[str, object])
        known["extFields"] = {key: _as_text(ext[key]) for key in ext if ext[key] is not None}
        return msgspec.convert(known, Command, strict=False)
    except _UNREADABLE as error:
        raise FrameError(f"the header is not a command: {header[:80]!r}") from error


# One escape; a surrogate pair counts as one. The group matches half a pair: not a character.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def _without_half(escape: re.Match[bytes]) -> bytes:
    """Return the escape, or `?` for half a surrogate pair, as Java does when it encodes text."""
    return b"?" if escape[1] else escape[0]


_NAMES = ("code", "opaque", "flag", "language", "version", "remark")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def hidden(name: str, **default: Any) -> Any:
    """Rename a field on the wire, so that a header cannot set it."""
    return msgspec.field(name=f"({name})", **default)


class TypedCommand(Command, gc=False, kw_only=True):
    """A command with a JSON header that is decoded in one pass, its fields as one object."""

    ext_fields: dict[str, str] = hidden("ext_fields", default_factory=dict)
    body: bytes = hidden("body", default=b"")
    serialize_type: int = hidden("serialize_type", default=JSON)
    send_header: SendMessageHeaderV2 | None = hidden("send_header", default=None)
    pull_header: PullMessageHeader | None = hidden("pull_header", default=None)
    ack_header: AckMessageHeader | None = hidden("ack_header", default=None)
    send_result: SendResultHeader | None = hidden("send_result", default=None)
    pull_result: PullResultHeader | None = hidden("pull_result", default=None)


@decodable
class _Send(TypedCommand, gc=False, kw_only=True):
    """A send."""

    send_header: SendMessageHeaderV2 | None = msgspec.field(name="extFields")


@decodable
class _Pull(TypedCommand, gc=False, kw_only=True):
    """A pull."""

    pull_header: PullMessageHeader | None = msgspec.field(name="extFields")


@decodable
class _Ack(TypedCommand, gc=False, kw_only=True):
    """An acknowledgement of a popped message."""

    ack_header: AckMessageHeader | None = msgspec.field(name="extFields")


@decodable
class _SendResult(TypedCommand, gc=False, kw_only=True):
    """The reply to a send."""

    send_result: SendResultHeader | None = msgspec.field(name="extFields")


@decodable
class _PullResult(TypedCommand, gc=False, kw_only=True):
    """The reply to a pull that found messages."""

    pull_result: PullResultHeader | None = msgspec.field(name="extFields")


SENDS = (b'{"code":310,', b'{"code":320,')  # SEND_MESSAGE_V2 and batches, as fastjson writes them
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
        if header.startswith(SENDS):
            return decode_typed(_decode_json_send, frame)
        if header.startswith(_PULLS):
            return decode_typed(_decode_json_pull, frame)
        if header.startswith(_ACK):
            return decode_typed(_decode_json_ack, frame)
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
            return decode_typed(_decode_json_send_result, frame)
        if _OF_A_PULL in header:
            return decode_typed(_decode_json_pull_result, frame)
    return decode_command(frame)


def decode_typed(decode: Callable[[bytes], Command], frame: Frame) -> Command:
    """Return the command that `decode` reads; if `decode` fails, use the general decoder."""
    if len(frame.header) > SHORT_HEADER_SIZE:
        _check_field_count(frame.header)
    try:
        command = decode(frame.header)
    except _UNREADABLE:
        return decode_command(frame)
    command.body = frame.body
    command.serialize_type = JSON
    return command
