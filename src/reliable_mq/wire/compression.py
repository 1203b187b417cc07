"""Bodies that their producer compressed: by what, and back again.

Three bits of a record's flags say by what: 1 is LZ4 (one frame), 2 ZSTD (one frame), 3 ZLIB (one
stream); 0 is ZLIB too, of clients from before there was a choice. LZ4 and ZSTD are extras of this
package. Source: Apache RocketMQ `MessageSysFlag`, `CompressorFactory`.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from reliable_mq.errors import ConfigurationError, RecordError
from reliable_mq.wire.record import COMPRESSED

_KIND_MASK = 0x700
_NAMES: Mapping[int, str] = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}
_FLAGS: Mapping[str, int] = {name: COMPRESSED | bits for bits, name in _NAMES.items()}

KINDS = tuple(_FLAGS)
"""What bodies can be compressed by, by name."""


class _Codec(NamedTuple):
    compress: Callable[[bytes], bytes]
    decompressor: Callable[[], Any]  # with `decompress(data, max_length)` and `eof`
    errors: tuple[type[Exception], ...]


def is_installed(name: str) -> bool:
    """Whether what compresses by this name is here; it may be an extra that is not."""
    return _codec(name) is not None


def how_to_install(name: str) -> str:
    """Return the command that brings an extra."""
    return f"pip install 'reliable-mq[{name}]'"


def flags_of(name: str) -> int:
    """Return the flags of a record whose body is compressed so."""
    return _FLAGS[name]


def compress(body: bytes, name: str) -> bytes:
    """Return `body` compressed by what is so called.

    Raises:
        ConfigurationError: when it is not installed.
    """
    codec = _codec(name)
    if codec is None:
        raise ConfigurationError(f"nothing here compresses by {name}: {how_to_install(name)}")
    return codec.compress(body)


def decompress(body: bytes, flags: int, size_max: int) -> bytes:
    """Return a body as it was before it was compressed.

    Args:
        body: as it is stored.
        flags: of its record.
        size_max: the most that it may become, in bytes; nothing larger is ever made of it.

    Raises:
        RecordError: when it is damaged, becomes too large, or what unpacks it is not installed.
    """
    name = _NAMES.get(flags & _KIND_MASK)
    if name is None:
        raise RecordError(f"a body is compressed by something unknown (flags {flags:#x})")
    codec = _codec(name)
    if codec is None:
        raise RecordError(
            f"a body compressed by {name.upper()} cannot be unpacked: {how_to_install(name)}"
        )
    decompressor = codec.decompressor()
    try:
        unpacked: bytes = decompressor.decompress(body, size_max + 1)
    except codec.errors as error:
        raise RecordError(f"a body compressed by {name.upper()} is damaged: {error}") from error
    if len(unpacked) > size_max:
        raise RecordError(f"a compressed body unpacks to more than {size_max} bytes")
    if not decompressor.eof:
        raise RecordError(f"a body compressed by {name.upper()} is damaged: its end is missing")
    return unpacked


def unpacker(flags: int) -> tuple[Any, tuple[type[Exception], ...]] | None:
    """Return what unpacks a body of these flags, and what that raises of a damaged one.

    It has `decompress(data, max_length)` and `eof`. None: nothing here does.
    """
    codec = _codec(_NAMES.get(flags & _KIND_MASK, ""))
    return None if codec is None else (codec.decompressor(), codec.errors)


@lru_cache
def _codec(name: str) -> _Codec | None:
    try:
        return _MAKERS[name]() if name in _MAKERS else None
    except ImportError:
        return None


def _zlib() -> _Codec:
    zlib: Any = import_module("isal.isal_zlib")
    return _Codec(zlib.compress, zlib.decompressobj, (zlib.error,))


def _lz4() -> _Codec:
    frame: Any = import_module("lz4.frame")
    return _Codec(frame.compress, frame.LZ4FrameDecompressor, (RuntimeError, EOFError))


def _zstd() -> _Codec:
    try:
        zstd: Any = import_module("compression.zstd")  # Python 3.14
    except ImportError:
        zstd = import_module("backports.zstd")
    return _Codec(zstd.compress, zstd.ZstdDecompressor, (zstd.ZstdError, EOFError))


_MAKERS: Mapping[str, Callable[[], _Codec]] = {"zlib": _zlib, "lz4": _lz4, "zstd": _zstd}
