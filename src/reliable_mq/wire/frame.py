"""Frames: where one command ends and the next begins.

    length i32 | header info i32 | header | body        length = 4 + len(header) + len(body)
    header info: top byte serialize type (0 JSON, 1 ROCKETMQ), low 24 bits len(header)

All integers are big-endian. The length does not count itself.
Rule 1: all knowledge of frame boundaries is in this module.
Rule 2: this module does not know the meaning of a header.
Source: Apache RocketMQ `RemotingCommand`, `NettyDecoder`.
"""

import struct
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, Never, Protocol, TypeVar, overload

import msgspec

from reliable_mq.errors import FrameError
from reliable_mq.limits import FRAME_SIZE_MAX

JSON = 0
ROCKETMQ = 1

_LENGTH = struct.Struct(">i")
_LENGTH_AND_HEADER_INFO = struct.Struct(">iI")
HEAD_SIZE = _LENGTH_AND_HEADER_INFO.size
_HEADER_LENGTH_MASK = 0x00FFFFFF

LENGTH_MIN = 4  # no header, no body
TOGETHER_MAX = 32  # frames that one thing stands for: a turn of a connection ends between two
ALIKE_MIN = 4  # fewer are looked at one by one
LENGTH_MAX = FRAME_SIZE_MAX - _LENGTH.size


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One command's bytes, cut from the stream."""

    serialize_type: int
    header: bytes
    body: bytes


def header_info(frame: Frame) -> int:
    """Return the header info of a frame."""
    return frame.serialize_type << 24 | len(frame.header)


T = TypeVar("T")


class Recogniser(Protocol[T]):
    """Finds what stands for frames of one header info; see `FrameReader`."""

    def one(self, data: bytes, at: int, end: int, before: T | Frame | None) -> T | None:
        """Return what stands for the frame from `at` to `end`; None: the frame itself.

        `before` stands for the frame before. If it now stands for this frame, too, it is returned
        again.
        """

    def many(self, data: bytes, at: int, size: int, count: int) -> T | None:
        """Return what stands for all of `count` frames of one size from `at` on; None: nothing."""


Known = Mapping[int, Recogniser[T]]
"""What recognises frames, by their header info; it may change between two frames."""


class FrameReader(Generic[T]):
    """Cuts frames from a stream that arrives in arbitrary pieces.

    Invariant F1: returned frames, kept bytes and uncut bytes are the fed bytes. The kept bytes are
    shorter than one frame. An impossible length is refused as soon as its last byte is looked at.
    So a peer can make a reader keep at most 16 MiB, and what was fed at once.

    Args:
        frames_max: frames that are cut at once. To cut thousands takes milliseconds.
        known: recognises frames. Default: each frame stands for itself.
    """

    __slots__ = (
        "_frames_max",
        "_kept",
        "_known",
        "_uncut_at",
        "_wanted",
        "count",
        "kept_size",
        "uncut",
    )

    @overload
    def __init__(self: "FrameReader[Never]", frames_max: int = sys.maxsize) -> None: ...

    @overload
    def __init__(self, frames_max: int, known: Known[T]) -> None: ...

    def __init__(
        self, frames_max: int = sys.maxsize, known: Known[T] = MappingProxyType({})
    ) -> None:
        self._frames_max = frames_max
        self._known = known
        self._kept = bytearray()  # one buffer: a tiny piece must not cost an object
        self._wanted = 0  # no frame is complete before this many bytes are kept
        #: bytes that were not cut yet, and perhaps those before them; see `cut_more`
        self.uncut = b""
        self._uncut_at = 0
        #: how many frames were cut by the last call
        self.count = 0
        #: how many bytes of an incomplete frame are kept
        self.kept_size = 0

    def feed(self, data: bytes) -> list[Frame | T]:
        """Return the frames that are complete now, oldest first; none while bytes are uncut.

        Raises:
            FrameError: when the stream is not a sequence of frames. Frames that the same bytes
                completed are lost. The caller must discard the stream and this reader.
        """
        self.count = 0
        if self.uncut:
            self.uncut, self._uncut_at = self.uncut[self._uncut_at :] + data, 0
            return []
        if self._kept:
            if len(self._kept) + len(data) < self._wanted:
                self._kept += data
                self.kept_size = len(self._kept)
                return []
            data = b"".join((self._kept, data))
            self._kept.clear()
            self.kept_size = 0
        return self._cut(data, 0)

    def feed_alone(self, data: bytes) -> T | None:
        """Return what stands for `data`, if it is exactly one frame, and that is recognised.

        None: it is something else, or earlier bytes are kept. Nothing was done then: call `feed`.
        """
        size = len(data)
        if self._kept or self.uncut or not HEAD_SIZE <= size <= FRAME_SIZE_MAX:
            return None
        length, header_info = _LENGTH_AND_HEADER_INFO.unpack_from(data)
        recogniser = self._known.get(header_info)
        body_at = HEAD_SIZE + (header_info & _HEADER_LENGTH_MASK)
        if recogniser is None or length + _LENGTH.size != size or body_at > size:
            return None
        self.count = 1
        return recogniser.one(data, 0, size, None)

    def cut_more(self) -> list[Frame | T]:
        """Return the next frames of the uncut bytes.

        Raises:
            FrameError: see `feed`.
        """
        data, self.uncut = self.uncut, b""
        return self._cut(data, self._uncut_at)

    def _cut(self, data: bytes, at: int) -> list[Frame | T]:
        frames: list[Frame | T] = []
        last: Frame | T | None = None
        available, known, left = len(data), self._known, self._frames_max
        looked_to = 0  # frames before it are looked at one by one
        while available - at >= HEAD_SIZE:
            if not left:
                self.uncut, self._uncut_at = data, at
                self.count = self._frames_max
                return frames
            length, header_info = _LENGTH_AND_HEADER_INFO.unpack_from(data, at)
            if not LENGTH_MIN <= length <= LENGTH_MAX:
                raise _length_refused(length)
            end = at + 4 + length
            header_at = at + HEAD_SIZE
            body_at = header_at + (header_info & _HEADER_LENGTH_MASK)
            if body_at > end:
                raise FrameError(
                    f"a header of {body_at - header_at} bytes does not fit into a frame of "
                    f"{length} bytes"
                )
            if end > available:
                self._wanted = end - at
                break
            recogniser = known.get(header_info)
            if recogniser is not None and at >= looked_to:
                count = _count_alike(data, at, end - at, left)
                looked_to = at + count * (end - at)
                many = recogniser.many(data, at, end - at, count) if count else None
                if many is not None:
                    frames.append(many)
                    last, left, at = None, left - count, looked_to
                    continue
            made = None if recogniser is None else recogniser.one(data, at, end, last)
            if made is None:
                last = Frame(header_info >> 24, data[header_at:body_at], data[body_at:end])
                frames.append(last)
            elif made is not last:
                last = made
                frames.append(made)
            left -= 1
            at = end
        else:
            self._wanted = _LENGTH.size
            if available - at >= _LENGTH.size:
                self._wanted = HEAD_SIZE
                _check_length(_LENGTH.unpack_from(data, at)[0])
        if at < available:
            self._kept += data[at:] if at else data
            self.kept_size = available - at
        self.count = self._frames_max - left
        return frames


def _count_alike(data: bytes, at: int, size: int, left: int) -> int:
    """Return how many frames from `at` on may have its size and header info; 0: too few have."""
    count = min((len(data) - at) // size, left, TOGETHER_MAX)
    is_last_alike = data.startswith(data[at : at + HEAD_SIZE], at + size * (count - 1))
    return count if count >= ALIKE_MIN and is_last_alike else 0


def _check_length(length: int) -> None:
    if not LENGTH_MIN <= length <= LENGTH_MAX:
        raise _length_refused(length)


def _length_refused(length: int) -> FrameError:
    return FrameError(f"frame length {length} is not in {LENGTH_MIN}..{LENGTH_MAX}")


def encode_head(serialize_type: int, header_length: int) -> bytes:
    """Return the bytes before the header, for a frame of less than 16 MiB without a body."""
    return _LENGTH_AND_HEADER_INFO.pack(4 + header_length, serialize_type << 24 | header_length)


def bare_frame(data: bytes) -> Frame | None:
    """Return the frame in bytes if they are one JSON header and nothing else; None: look closer."""
    size = len(data) - HEAD_SIZE
    if not 0 <= size <= _HEADER_LENGTH_MASK or not data.startswith(encode_head(JSON, size)):
        return None
    return Frame(JSON, data[HEAD_SIZE:], b"")


def encode_numbered(
    serialize_type: int, front: bytes, back: bytes, body: bytes, number: int
) -> bytes:
    """Return the bytes of one frame; its header is `front`, a decimal number and `back`.

    Raises:
        FrameError: when the frame would be longer than 16 MiB.
    """
    return encode_frame(serialize_type, b"%b%d%b" % (front, number, back), body)


def encode_frame(serialize_type: int, header: bytes, body: bytes = b"") -> bytes:
    """Return the bytes of one frame.

    Raises:
        FrameError: when the frame would be longer than 16 MiB.
    """
    length = 4 + len(header) + len(body)
    if length > LENGTH_MAX:
        raise _length_refused(length)
    return _LENGTH_AND_HEADER_INFO.pack(length, serialize_type << 24 | len(header)) + header + body
