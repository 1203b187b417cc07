"""Compressed bodies: which algorithm a record names, compression and decompression.

Three bits of a record's flags name the algorithm: 1 is LZ4 (one frame), 2 ZSTD (one frame), 3 ZLIB
(one stream). 0 is also ZLIB, because older clients had no choice. LZ4 and ZSTD are extras of this
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
"""Names of the supported algorithms."""


class _Codec(NamedTuple):
    compress: Callable[[bytes], bytes]
    decompressor: Callable[[], Any]  # with `decompress(data, max_length)` and `eof`
    errors: tuple[type[Exception], ...]


def is_installed(name: str) -> bool:
    """Whether the library of this algorithm is installed; it may be an optional extra."""
    return _codec(name) is not None


def how_to_install(name: str) -> str:
    """Return the command that installs the extra of this algorithm."""
    return f"pip install 'reliable-mq[{name}]'"


def flags_of(name: str) -> int:
    """Return the flags of a record whose body is compressed with this algorithm."""
    return _FLAGS[name]


def compress(body: bytes, name: str) -> bytes:
    """Return `body`, compressed with the algorithm `name`.

    Raises:
        ConfigurationError: when its library is not installed.
    """
    codec = _codec(name)
    if codec is None:
        raise ConfigurationError(f"{name} is not installed; run: {how_to_install(name)}")
    return codec.compress(body)


def decompress(body: bytes, flags: int, size_max: int) -> bytes:
    """Return the decompressed body.

    Args:
        body: the stored body.
        flags: the flags of its record.
        size_max: size limit of the decompressed body, in bytes. Decompression stops there.

    Raises:
        RecordError: when the body is damaged or too large, or when the library of its algorithm is
            not installed.
    """
    name = _NAMES.get(flags & _KIND_MASK)
    if name is None:
        raise RecordError(f"the body has an unknown compression type (flags {flags:#x})")
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
    """Return a decompressor for these flags, and the exceptions that it raises for a damaged body.

    The decompressor has `decompress(data, max_length)` and `eof`. None: the algorithm is unknown,
    or its library is not installed.
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
