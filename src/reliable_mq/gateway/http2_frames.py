"""The frames of HTTP/2, what may go wrong with them, and one stream. Values only.

Source: RFC 9113.
"""

import struct
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Final

from reliable_mq.errors import FrameError
from reliable_mq.gateway.hpack import Headers
from reliable_mq.gateway.request_heads import RequestHead

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_SIZE = 16_384
"""The most bytes of a frame, both ways: the smallest limit that HTTP/2 allows."""
WINDOW_MAX = 2**31 - 1
STREAM_WINDOW = 1024 * 1024
CONNECTION_WINDOW = 8 * 1024 * 1024
STREAMS_MAX = 1_000
BLOCK_SIZE_MAX = 64 * 1024


class Http2Fault(IntEnum):
    """Why a stream or a connection ends; the codes of HTTP/2."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(FrameError):
    """A peer breaks the rules of HTTP/2: its connection ends."""

    def __init__(self, fault: Http2Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


DATA, HEADERS, PRIORITY, RESET_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH, PING, GO_AWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 0x20
MAX_STREAMS, INITIAL_WINDOW, MAX_LIST = 3, 4, 6  # settings

BEGUN: Final = 1
"""A stream has begun; its headers are there."""
CAME: Final = 2
"""A stream has more of its body."""
ENDED: Final = 3
"""A stream has all of its body."""
RESET: Final = 4
"""The peer does not want a stream any more."""

HEAD = struct.Struct(">HBBBI")  # length: two bytes and one, type, flags, stream
pack_u32 = struct.Struct(">I").pack
_U32_SIZE = 4


def frame_of(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """Return a frame."""
    length = len(payload)
    return b"".join((HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream), payload))


@lru_cache(maxsize=1024)
def frame_begin(length: int, kind: int, flags: int) -> bytes:
    """Return what stands in a frame before the number of its stream."""
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, 0)[:-_U32_SIZE]


def _settings() -> bytes:
    pairs = ((MAX_STREAMS, STREAMS_MAX), (INITIAL_WINDOW, STREAM_WINDOW), (MAX_LIST, 32 * 1024))
    return b"".join(struct.pack(">HI", *pair) for pair in pairs)


HELLO = frame_of(SETTINGS, 0, 0, _settings()) + frame_of(
    WINDOW_UPDATE, 0, 0, pack_u32(CONNECTION_WINDOW - 65_535)
)
SETTINGS_ACK = frame_of(SETTINGS, ACK, 0)


class Stream:
    """One call of the peer, from its headers to the last byte of the answer."""

    __slots__ = (
        *("body", "context", "head", "headers", "id", "is_answered", "is_read", "is_reset"),
        *("on_left", "pending", "received", "trailers", "window"),
    )

    def __init__(self, number: int, window: int) -> None:
        self.id = number
        self.window = window
        """Bytes that the peer takes."""
        self.headers: Headers = []
        self.head: RequestHead | None = None
        """What they say."""
        self.body = bytearray()
        self.received = 0
        """Bytes of the window that the peer has used."""
        self.is_read = False
        """Whether the peer sends no more."""
        self.is_answered = False
        """Whether the headers of the answer have left."""
        self.is_reset = False
        self.on_left: Callable[[bool], None] | None = None
        """Called once: when all data is on its way (True), or when some never will be."""
        self.pending: deque[memoryview] | None = None
        """What waits for the window."""
        self.trailers: bytes | None = None
        """What follows when nothing waits any more."""
        self.context: object = None
        """The owner's."""
