"""Commands: what one side of a connection asks or answers.

Two header forms carry the same fields, and a reply uses the form of its request:

    JSON       {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,
                "serializeTypeCurrentRPC":"JSON","version":493}
    ROCKETMQ   code i16 | language u8 | version i16 | opaque i32 | flag i32
               | remark length i32, remark | ext length i32, repeated (key length i16, key,
               value length i32, value)

Flag bit 0 marks a reply, bit 1 a request that wants none. `opaque` ties a reply to its request and
is the sender's counter. Source: Apache RocketMQ `RemotingCommand`, `RocketMQSerializable`.
"""

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import FrameError
from reliable_mq.limits import FIELDS_MAX, SHORT_HEADER_SIZE, SLOW_TEXT_SIZE_MAX
from reliable_mq.wire.frame import JSON, ROCKETMQ, Frame, encode_frame
from reliable_mq.wire.headers import PullMessageHeader, SendMessageHeaderV2, SendResultHeader
from reliable_mq.wire.java_int import I32

VERSION = 493  # MQVersion.V5_4_0; clients enable SQL92 and more by the version in replies
LANGUAGE = "PYTHON"

REPLY_FLAG = 0b01
ONE_WAY_FLAG = 0b10

_LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY"),
    *("OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
_LANGUAGE_BYTES = {name: code for code, name in enumerate(_LANGUAGES)}
_OTHER = _LANGUAGE_BYTES["OTHER"]


@decodable
class Command(msgspec.Struct, rename={"ext_fields": "extFields"}, gc=False):
    """One request or reply.

    All values of `ext_fields` are text ("true", "42"), as the protocol has it. A field that a JSON
    header lacks takes the default here; `body` and `serialize_type` come from the frame, whatever
    a header says. A send or a pull that `decode_request` read bears its fields in `send_header` or
    `pull_header` instead of `ext_fields`; what `decode_reply` read may do so in `send_result`.
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
    send_result: SendResultHeader | None = None

    @property
    def is_reply(self) -> bool:
        """Whether this answers a request of ours."""
        return bool(self.flag & REPLY_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no reply."""
        return bool(self.flag & ONE_WAY_FLAG)


def request(
    code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, oneway: bool = False
) -> Command:
    """Return a request of ours; `opaque` is set by the session that sends it."""
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
    """Return the answer to `to`, in the header form that `to` came in."""
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
    """The JSON form, its names in the order in which Apache's fastjson writes them."""

    code: int
    extFields: dict[str, str] | msgspec.UnsetType  # noqa: N815 - the name on the wire
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    serializeTypeCurrentRPC: str  # noqa: N815
    version: int


_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)

_decode_json = msgspec.json.Decoder(Command).decode
_encode_json = msgspec.json.Encoder().encode


def decode_command(frame: Frame) -> Command:
    """Return the command in `frame`.

    Raises:
        FrameError: when the header is not of the form that the frame claims.
    """
    if frame.serialize_type == JSON:
        if len(frame.header) > SHORT_HEADER_SIZE:
            _check_field_count(frame.header)
        try:
            command = _decode_json(frame.header)
        except _UNREADABLE:
            command = _decode_json_of_any_shape(frame.header)
    elif frame.serialize_type == ROCKETMQ:
        command = _decode_compact(frame.header)
    else:
        raise FrameError(f"unknown serialize type {frame.serialize_type}")
    command.body = frame.body
    command.serialize_type = frame.serialize_type
    command.send_header = command.pull_header = command.send_result = None
    return command


def _hidden(name: str, **default: Any) -> Any:
    """Keep a field from the names on the wire: what a header says under this one is harmless."""
    return msgspec.field(name=f"({name})", **default)


@decodable
class _Send(Command, gc=False, kw_only=True):
    """A send whose JSON header is read in one go."""

    ext_fields: dict[str, str] = _hidden("ext_fields", default_factory=dict)
    body: bytes = _hidden("body", default=b"")
    serialize_type: int = _hidden("serialize_type", default=JSON)
    send_header: SendMessageHeaderV2 | None = msgspec.field(name="extFields")
    pull_header: PullMessageHeader | None = _hidden("pull_header", default=None)
    send_result: SendResultHeader | None = _hidden("send_result", default=None)


@decodable
class _Pull(Command, gc=False, kw_only=True):
    """A pull whose JSON header is read in one go."""

    ext_fields: dict[str, str] = _hidden("ext_fields", default_factory=dict)
    body: bytes = _hidden("body", default=b"")
    serialize_type: int = _hidden("serialize_type", default=JSON)
    send_header: SendMessageHeaderV2 | None = _hidden("send_header", default=None)
    pull_header: PullMessageHeader | None = msgspec.field(name="extFields")
    send_result: SendResultHeader | None = _hidden("send_result", default=None)


@decodable
class _SendResult(Command, gc=False, kw_only=True):
    """The reply to a send whose JSON header is read in one go."""

    ext_fields: dict[str, str] = _hidden("ext_fields", default_factory=dict)
    body: bytes = _hidden("body", default=b"")
    serialize_type: int = _hidden("serialize_type", default=JSON)
    send_header: SendMessageHeaderV2 | None = _hidden("send_header", default=None)
    pull_header: PullMessageHeader | None = _hidden("pull_header", default=None)
    send_result: SendResultHeader | None = msgspec.field(name="extFields")


_SENDS = (b'{"code":310,', b'{"code":320,')  # SEND_MESSAGE_V2 and batches, as fastjson begins them
_PULLS = (b'{"code":11,', b'{"code":361,')  # PULL_MESSAGE, LITE_PULL_MESSAGE
_decode_json_send = msgspec.json.Decoder(_Send, strict=False).decode
_decode_json_pull = msgspec.json.Decoder(_Pull, strict=False).decode


def decode_request(frame: Frame) -> Command:
    """Return the command in `frame`; sends and pulls bear typed headers (a broker's hot path).

    What does not read as typed is read in general, so that its fault is told in general words.

    Raises:
        FrameError: when the header is not of the form that the frame claims.
    """
    header = frame.header
    if frame.serialize_type == JSON:
        if header.startswith(_SENDS):
            return _decode_typed(_decode_json_send, frame)
        if header.startswith(_PULLS):
            return _decode_typed(_decode_json_pull, frame)
    return decode_command(frame)


_STORED = b'{"code":0,"extFields":{'  # as fastjson begins a reply that says more than "yes"
_OF_A_SEND = b'"queueOffset":'
_decode_json_send_result = msgspec.json.Decoder(_SendResult, strict=False).decode


def decode_reply(frame: Frame) -> Command:
    """Return the command in `frame`; a reply to a send bears a typed header (a client's hot path).

    What does not read as typed is read in general, so that its fault is told in general words.

    Raises:
        FrameError: when the header is not of the form that the frame claims.
    """
    header = frame.header
    if frame.serialize_type == JSON and header.startswith(_STORED) and _OF_A_SEND in header:
        return _decode_typed(_decode_json_send_result, frame)
    return decode_command(frame)


def _decode_typed(decode: Callable[[bytes], Command], frame: Frame) -> Command:
    """Return what `decode` reads of a JSON header, or what is read of it in general."""
    if len(frame.header) > SHORT_HEADER_SIZE:
        _check_field_count(frame.header)
    try:
        command = decode(frame.header)
    except _UNREADABLE:
        return decode_command(frame)
    command.body = frame.body
    command.serialize_type = JSON
    return command


def _check_field_count(header: bytes) -> None:
    """Raise `FrameError` for a JSON header of too many fields, before the fields are read.

    A field has four quotes that are not escaped. Whoever ends names and values with a backslash
    gets twice as many fields through.
    """
    quotes = header.count(b'"') - header.count(b'\\"')
    if quotes > 4 * (FIELDS_MAX + len(_NAMES)):
        raise FrameError(f"the header is no command: it has more than {FIELDS_MAX} fields")


def encode_command(command: Command) -> bytes:
    """Return the whole frame of `command`.

    The ROCKETMQ form has 16 bits for the code and cuts off the others, as Apache's does.

    Raises:
        FrameError: when the frame would be longer than 16 MiB, or a field does not fit the form.
    """
    try:
        if command.serialize_type == JSON:
            header = _encode_json_header(command)
        elif command.serialize_type == ROCKETMQ:
            header = _encode_compact(command)
        else:
            raise FrameError(f"unknown serialize type {command.serialize_type}")
    except UnicodeEncodeError as error:
        raise FrameError("its header holds half a character") from error
    except struct.error as error:
        raise FrameError(
            "a name or a number in its header is too large for the ROCKETMQ form"
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
    """Decode what other clients send: null or numeric ext values, null fields, half characters."""
    if len(header) > SLOW_TEXT_SIZE_MAX:
        raise FrameError(
            f"the header is no command, or of a form that is read up to {SLOW_TEXT_SIZE_MAX} "
            f"bytes: {header[:80]!r}"
        )
    try:
        readable = _ESCAPE.sub(_without_half, header)
        fields = msgspec.json.decode(readable, type=dict[str, object])
        known = {name: fields[name] for name in _NAMES if fields.get(name) is not None}
        ext = msgspec.convert(fields.get("extFields") or {}, dict[str, object])
        known["extFields"] = {key: _as_text(ext[key]) for key in ext if ext[key] is not None}
        return msgspec.convert(known, Command, strict=False)
    except _UNREADABLE as error:
        raise FrameError(f"the header is no command: {header[:80]!r}") from error


# An escape, a pair of surrogates as one; the group is half a pair, which is no character.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def _without_half(escape: re.Match[bytes]) -> bytes:
    """Return an escape, `?` for half a pair: Java writes that when it makes bytes of the text."""
    return b"?" if escape[1] else escape[0]


_NAMES = ("code", "opaque", "flag", "language", "version", "remark")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


_COMPACT_FIXED = struct.Struct(">hBhii")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


def _encode_compact(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    parts: list[bytes] = []
    for key, value in command.ext_fields.items():
        key_bytes = key.encode()
        value_bytes = value.encode()
        parts += (_I16.pack(len(key_bytes)), key_bytes, _I32.pack(len(value_bytes)), value_bytes)
    ext = b"".join(parts)
    code = (command.code + 0x8000 & 0xFFFF) - 0x8000  # 16 bits is all that this form has
    fixed = _COMPACT_FIXED.pack(
        code,
        _LANGUAGE_BYTES.get(command.language, _OTHER),
        command.version,
        command.opaque,
        command.flag,
    )
    return b"".join((fixed, _I32.pack(len(remark)), remark, _I32.pack(len(ext)), ext))


def _decode_compact(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag = _COMPACT_FIXED.unpack_from(header)
        remark, at = _sized_text(header, _COMPACT_FIXED.size, _I32)
        (ext_length,) = _I32.unpack_from(header, at)
        at += 4
        end = at + ext_length
        if not at <= end <= len(header):
            raise FrameError(f"ext fields of {ext_length} bytes in a header of {len(header)}")
        ext: dict[str, str] = {}
        for _ in range(FIELDS_MAX):
            if at >= end:
                break
            key, at = _sized_text(header, at, _I16)
            ext[key], at = _sized_text(header, at, _I32)
        if at < end:
            raise FrameError(f"the header is no command: it has more than {FIELDS_MAX} fields")
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"the header is no command: {header[:80]!r}") from error
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        language=_LANGUAGES[language] if language < len(_LANGUAGES) else "OTHER",
        version=version,
        remark=remark or None,
        ext_fields=ext,
    )


def _sized_text(buffer: bytes, at: int, size: struct.Struct) -> tuple[str, int]:
    (length,) = size.unpack_from(buffer, at)
    start = at + size.size
    end = start + length
    if not start <= end <= len(buffer):
        raise FrameError(f"a text of {length} bytes at {at} in a header of {len(buffer)}")
    return buffer[start:end].decode(), end
