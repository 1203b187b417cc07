"""Frames: where one command ends and the next begins.

    length i32 | header info i32 | header | body        length = 4 + len(header) + len(body)
    header info: top byte serialize type (0 JSON, 1 ROCKETMQ), low 24 bits len(header)

All integers are big-endian. The length does not count itself.
Rule 1: everything about the border between commands lives here.
Rule 2: this file does not know what a header means.
Source: Apache RocketMQ `RemotingCommand`, `NettyDecoder`.
"""

import struct
from typing import NamedTuple

from reliable_mq.errors import FrameError
from reliable_mq.limits import FRAME_SIZE_MAX

JSON = 0
ROCKETMQ = 1

_LENGTH = struct.Struct(">i")
_LENGTH_AND_HEADER_INFO = struct.Struct(">iI")
_HEADER_LENGTH_MASK = 0x00FFFFFF


class Frame(NamedTuple):
    """One command's bytes, cut from the stream."""

    serialize_type: int
    header: bytes
    body: bytes


class FrameReader:
    """Cuts frames from a stream that arrives in arbitrary pieces.

    Invariant F1: what is kept is shorter than one frame, and what was returned plus what is kept
    is what was fed.
    """

    __slots__ = ("_kept", "_missing")

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._missing = 0  # how many bytes the first kept frame still needs; 0 when unknown

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now, oldest first.

        Raises:
            FrameError: when the stream cannot be a sequence of frames. The reader must not be
                fed again.
        """
        if self._kept:
            self._kept.append(data)
            if len(data) < self._missing:  # a large frame in many pieces is joined once, at its end
                self._missing -= len(data)
                return []
            data = b"".join(self._kept)
        frames: list[Frame] = []
        at = 0
        available = len(data)
        while available - at >= 8:
            length, header_info = _LENGTH_AND_HEADER_INFO.unpack_from(data, at)
            end = at + 4 + length
            _check_length(length)
            if end > available:
                break
            header_end = at + 8 + (header_info & _HEADER_LENGTH_MASK)
            if header_end > end:
                raise FrameError(
                    f"header of {header_end - at - 8} bytes in a frame of {length} bytes"
                )
            frames.append(Frame(header_info >> 24, data[at + 8 : header_end], data[header_end:end]))
            at = end
        self._keep(data[at:] if at else data)
        return frames

    def _keep(self, rest: bytes) -> None:
        self._kept = [rest] if rest else []
        self._missing = 0
        if len(rest) >= 4:
            length = _LENGTH.unpack_from(rest)[0]
            _check_length(length)
            self._missing = max(0, 4 + length - len(rest))

    @property
    def kept_size(self) -> int:
        """How many bytes wait for the rest of their frame."""
        return sum(map(len, self._kept))


def _check_length(length: int) -> None:
    if not 4 <= length <= FRAME_SIZE_MAX - 4:
        raise FrameError(f"frame length {length} is not in 4..{FRAME_SIZE_MAX - 4}")


def encode_frame(serialize_type: int, header: bytes, body: bytes = b"") -> bytes:
    """Return the bytes of one frame.

    Raises:
        FrameError: when it would be longer than 16 MiB.
    """
    length = 4 + len(header) + len(body)
    _check_length(length)
    return _LENGTH_AND_HEADER_INFO.pack(length, serialize_type << 24 | len(header)) + header + body
