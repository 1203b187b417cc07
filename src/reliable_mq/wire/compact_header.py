"""The ROCKETMQ format of a command's header: numbers and sized texts instead of JSON.

    code i16 | language u8 | version i16 | opaque i32 | flag i32
    | remark length i32, remark | ext length i32, repeated (key length i16, key,
    value length i32, value)

Source: Apache RocketMQ `RocketMQSerializable`, `LanguageCode`.
"""

import struct
from collections.abc import Mapping
from typing import Protocol

from reliable_mq.errors import FrameError
from reliable_mq.limits import FIELDS_MAX

LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY"),
    *("OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
"""The names of clients' languages, by their numbers."""
_LANGUAGE_BYTES = {name: code for code, name in enumerate(LANGUAGES)}
_OTHER = _LANGUAGE_BYTES["OTHER"]

_FIXED = struct.Struct(">hBhii")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


class CompactFields(Protocol):
    """The fields of a header; a `Command` has them."""

    @property
    def code(self) -> int: ...
    @property
    def language(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def opaque(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def remark(self) -> str | None: ...
    @property
    def ext_fields(self) -> Mapping[str, str]: ...


def encode_compact(header: CompactFields) -> bytes:
    """Return the bytes of a header. The format has 16 bits for the code: higher bits are dropped.

    Raises:
        struct.error: when a name or a number is too large for the format.
        UnicodeEncodeError: when a text has half a surrogate pair.
    """
    remark = (header.remark or "").encode()
    parts: list[bytes] = []
    for key, value in header.ext_fields.items():
        key_bytes = key.encode()
        value_bytes = value.encode()
        parts += (_I16.pack(len(key_bytes)), key_bytes, _I32.pack(len(value_bytes)), value_bytes)
    ext = b"".join(parts)
    code = (header.code + 0x8000 & 0xFFFF) - 0x8000
    fixed = _FIXED.pack(
        code,
        _LANGUAGE_BYTES.get(header.language, _OTHER),
        header.version,
        header.opaque,
        header.flag,
    )
    return b"".join((fixed, _I32.pack(len(remark)), remark, _I32.pack(len(ext)), ext))


def decode_compact(
    header: bytes,
) -> tuple[int, str, int, int, int, str | None, dict[str, str]]:
    """Return code, language, version, opaque, flag, remark and fields of a header.

    Raises:
        FrameError: when the bytes are not in this format.
    """
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(header)
        remark, at = _sized_text(header, _FIXED.size, _I32)
        (ext_length,) = _I32.unpack_from(header, at)
        at += 4
        end = at + ext_length
        if not at <= end <= len(header):
            raise FrameError(f"ext fields of {ext_length} bytes exceed the header of {len(header)}")
        ext: dict[str, str] = {}
        for _ in range(FIELDS_MAX):
            if at >= end:
                break
            key, at = _sized_text(header, at, _I16)
            ext[key], at = _sized_text(header, at, _I32)
        if at < end:
            raise FrameError(f"the header is not a command: it has more than {FIELDS_MAX} fields")
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"the header is not a command: {header[:80]!r}") from error
    name = LANGUAGES[language] if language < len(LANGUAGES) else "OTHER"
    return code, name, version, opaque, flag, remark or None, ext


def _sized_text(buffer: bytes, at: int, size: struct.Struct) -> tuple[str, int]:
    (length,) = size.unpack_from(buffer, at)
    start = at + size.size
    end = start + length
    if not start <= end <= len(buffer):
        raise FrameError(f"a text of {length} bytes at {at} exceeds the header of {len(buffer)}")
    return buffer[start:end].decode(), end
