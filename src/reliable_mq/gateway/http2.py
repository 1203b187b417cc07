"""The server's side of one HTTP/2 connection. Pure.

Receives bytes and the time. Returns what happened to streams; `http2_answers` sends what they get.
It knows what gRPC needs of HTTP/2, and no more: no push, no priorities, no table for headers that
it writes. What a peer may use up is bounded: streams, bytes of headers, bodies that have not come
in whole, and frames that ask for work and bring nothing.
Source: RFC 9113.
"""

import struct
import sys

from reliable_mq.errors import FrameError
from reliable_mq.gateway.header_rules import why_no_trailers
from reliable_mq.gateway.hpack import HeaderReader
from reliable_mq.gateway.http2_answers import Http2Answers
from reliable_mq.gateway.http2_frames import (
    ACK,
    BEGUN,
    BLOCK_SIZE_MAX,
    CAME,
    CONNECTION_WINDOW,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENDED,
    FRAME_SIZE,
    HAS_PRIORITY,
    HEAD,
    HEADERS,
    INITIAL_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PUSH,
    RESET,
    RESET_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    STREAM_WINDOW,
    STREAMS_MAX,
    WINDOW_MAX,
    WINDOW_UPDATE,
    Http2Error,
    Http2Fault,
    Stream,
    frame_of,
    pack_u32,
)
from reliable_mq.gateway.request_heads import RequestHeads

_IDLE_FRAMES = 2_000.0  # so many frames without use are saved up,
_IDLE_FRAMES_A_SECOND = 200.0  # and so many more are granted each second
_SETTINGS_MAX = 32  # in one frame
_HEADERS_SIZE = 512  # bytes of headers that take as long as a short frame, at worst
_PRIORITY_SIZE = 5

_PAIRS = struct.Struct(">HI")

Happening = tuple[int, Stream]


class Http2Connection(Http2Answers):
    """One connection: the half that takes frames, and `Http2Answers`, which has the streams."""

    def __init__(self) -> None:
        super().__init__()
        self.has_more = False
        """Whether frames that have come whole wait for the next `feed`."""
        self._kept, self._kept_from = b"", 0
        self._has_begun = self._has_settings = False
        self._reader = HeaderReader()
        self._heads = RequestHeads()
        self._block = bytearray()
        self._block_of: tuple[int, int] | None = None  # a stream and the flags of its headers
        self._received = 0
        self._idle_frames = _IDLE_FRAMES
        self._refilled_at = 0.0

    @property
    def kept_size(self) -> int:
        """Bytes of incomplete frames, header blocks and bodies."""
        return len(self._kept) - self._kept_from + len(self._block) + self.body_size

    def feed(self, data: bytes, now: float, most: int = sys.maxsize) -> list[Happening]:
        """Take bytes that have come; return what happened, in its order.

        Args:
            data: the bytes; none if only frames that wait are to be taken.
            now: the time.
            most: how many frames are taken; the others wait. Long headers count as several: to
                read 16 KiB of them takes 3 ms. Default: all.

        Raises:
            Http2Error: when the connection cannot go on. `out` has the farewell, too.
        """
        happened: list[Happening] = []
        try:
            self._feed(data, now, most, happened)
        except Http2Error as error:
            self.go_away(error.fault, str(error))
            raise
        return happened

    def _feed(self, data: bytes, now: float, most: int, happened: list[Happening]) -> None:
        buffer, at, count = self._kept, self._kept_from, 0
        if data:
            buffer, at = (buffer[at:] + data if buffer else data), 0
        end, self._kept_from, self.has_more = len(buffer), 0, False
        if not self._has_begun:
            if end < len(PREFACE) and PREFACE.startswith(buffer):
                self._kept = buffer
                return
            if not buffer.startswith(PREFACE):
                raise Http2Error(Http2Fault.PROTOCOL_ERROR, "the first bytes are not HTTP/2")
            self._has_begun, at, self._refilled_at = True, len(PREFACE), now
        while end - at >= HEAD.size:
            high, low, kind, flags, number = HEAD.unpack_from(buffer, at)
            length = high << 8 | low
            if length > FRAME_SIZE:
                raise Http2Error(Http2Fault.FRAME_SIZE_ERROR, f"a frame has {length} bytes")
            begin = at + HEAD.size
            if end - begin < length:
                break
            if count >= most:  # the rest is not copied for each share of it
                self._kept, self._kept_from, self.has_more = buffer, at, True
                return
            count += 1 if kind == DATA else 1 + length // _HEADERS_SIZE
            at = begin + length
            number &= WINDOW_MAX
            if kind == DATA and self._has_settings and self._block_of is None:  # the usual ones
                self._take_data(flags, number, buffer[begin:at], now, happened)
            elif kind == HEADERS and self._has_settings and self._block_of is None:
                self._take_headers(flags, number, buffer[begin:at], now, happened)
            else:
                self._take(kind, flags, number, buffer[begin:at], now, happened)
        self._kept = buffer[at:] if at else buffer

    def _take(
        self,
        kind: int,
        flags: int,
        number: int,
        payload: bytes,
        now: float,
        happened: list[Happening],
    ) -> None:
        self._check_order(kind, number)
        if kind == WINDOW_UPDATE:
            self._count_update(now)
            self._take_window(number, payload)
        elif kind == PING:  # Netty's client sends one when it has read data, to learn its window
            self._count_update(now)
            self._take_ping(flags, number, payload)
        elif kind == SETTINGS:
            self._count_idle(now)
            self._take_settings(flags, number, payload)
        elif kind == RESET_STREAM:
            self._count_idle(now)
            self._take_reset(number, payload, happened)
        elif kind == CONTINUATION:
            self._take_more_headers(flags, number, payload, now, happened)
        elif kind == PUSH:
            raise Http2Error(Http2Fault.PROTOCOL_ERROR, "a client pushes")
        else:  # a priority, a farewell, or what RFC 9113 does not know
            self._count_idle(now)

    def _check_order(self, kind: int, number: int) -> None:
        """Refuse a frame that may not come now."""
        if not self._has_settings and kind != SETTINGS:
            raise Http2Error(Http2Fault.PROTOCOL_ERROR, "settings come first")
        self._has_settings = True
        if self._block_of is not None and (kind != CONTINUATION or number != self._block_of[0]):
            raise Http2Error(Http2Fault.PROTOCOL_ERROR, "a header block is interrupted")

    def _take_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2Error(Http2Fault.PROTOCOL_ERROR, "a ping belongs to no stream")
        if len(payload) != 8:
            raise Http2Error(Http2Fault.FRAME_SIZE_ERROR, "a ping has eight bytes")
        if not flags & ACK:
            self.out.append(frame_of(PING, ACK, 0, payload))

    def _count_idle(self, now: float) -> None:
        """Count a frame that brings nothing. Somebody who sends only such frames is closed."""
        granted = (now - self._refilled_at) * _IDLE_FRAMES_A_SECOND
        self._idle_frames = min(self._idle_frames + granted, _IDLE_FRAMES) - 1
        self._refilled_at = now
        if self._idle_frames < 0:
            raise Http2Error(Http2Fault.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def _count_update(self, now: float) -> None:
        """Count an update of a window, or a ping: data that we have sent pays for two of them."""
        if self._updates:
            self._updates -= 1
        else:
            self._count_idle(now)

    def _take_data(
        self, flags: int, number: int, payload: bytes, now: float, happened: list[Happening]
    ) -> None:
        size = len(payload)
        self._received += size
        if self._received > CONNECTION_WINDOW:
            raise Http2Error(Http2Fault.FLOW_CONTROL_ERROR, "more data than the window allows")
        if self._received >= CONNECTION_WINDOW // 2:
            self.out.append(frame_of(WINDOW_UPDATE, 0, 0, pack_u32(self._received)))
            self._received = 0
        stream = self.streams.get(number)
        if stream is None or stream.is_read:
            if not number or number > self._last:
                raise Http2Error(Http2Fault.PROTOCOL_ERROR, "data of a stream that has not begun")
            self._count_idle(now)  # of a stream that has ended meanwhile
            return
        if flags & PADDED:
            payload = _unpadded(payload)
        if not payload and not flags & END_STREAM:
            self._count_idle(now)
        stream.received += size
        if stream.received > STREAM_WINDOW:
            raise Http2Error(
                Http2Fault.FLOW_CONTROL_ERROR, "more data than a stream's window allows"
            )
        stream.body += payload
        self.body_size += len(payload)
        if flags & END_STREAM:
            stream.is_read = True
            happened.append((ENDED, stream))
            return
        if stream.received >= STREAM_WINDOW // 2:
            self.out.append(frame_of(WINDOW_UPDATE, 0, number, pack_u32(stream.received)))
            stream.received = 0
        happened.append((CAME, stream))

    def _take_headers(
        self, flags: int, number: int, payload: bytes, now: float, happened: list[Happening]
    ) -> None:
        if flags & PADDED:
            payload = _unpadded(payload)
        if flags & HAS_PRIORITY:
            if len(payload) < _PRIORITY_SIZE:
                raise Http2Error(Http2Fault.FRAME_SIZE_ERROR, "a priority has five bytes")
            payload = payload[_PRIORITY_SIZE:]
        if flags & END_HEADERS:
            self._begin(flags, number, payload, now, happened)
            return
        self._block_of = (number, flags)
        self._block += payload

    def _take_more_headers(
        self, flags: int, number: int, payload: bytes, now: float, happened: list[Happening]
    ) -> None:
        if self._block_of is None:
            raise Http2Error(Http2Fault.PROTOCOL_ERROR, "headers go on that have not begun")
        self._block += payload
        is_empty = not payload and not flags & END_HEADERS
        if len(self._block) > BLOCK_SIZE_MAX or is_empty:
            raise Http2Error(Http2Fault.ENHANCE_YOUR_CALM, "a header block never ends")
        if flags & END_HEADERS:
            (_, first_flags), block = self._block_of, bytes(self._block)
            self._block_of = None
            self._block.clear()
            self._begin(first_flags, number, block, now, happened)

    def _begin(
        self, flags: int, number: int, block: bytes, now: float, happened: list[Happening]
    ) -> None:
        try:
            headers = self._reader.read(block)
        except FrameError as error:
            raise Http2Error(Http2Fault.COMPRESSION_ERROR, str(error)) from error
        stream = self.streams.get(number)
        if stream is not None:  # trailers of the peer: they say nothing
            if not flags & END_STREAM or stream.is_read:
                raise Http2Error(Http2Fault.PROTOCOL_ERROR, "a stream has headers twice")
            if why_no_trailers(headers):
                self._count_idle(now)
                self.reset(stream, Http2Fault.PROTOCOL_ERROR)
                happened.append((RESET, stream))
                return
            stream.is_read = True
            happened.append((ENDED, stream))
            return
        if number & 1 and number <= self._last:  # trailers of a stream that has ended meanwhile
            self._count_idle(now)
            return
        if not number & 1:
            raise Http2Error(Http2Fault.PROTOCOL_ERROR, f"stream {number} cannot begin")
        self._last = number
        if self.is_going or len(self.streams) >= STREAMS_MAX:
            self._refuse(number, Http2Fault.REFUSED_STREAM, now)
            return
        head = self._heads.of(headers)
        if head.why:
            self._refuse(number, Http2Fault.PROTOCOL_ERROR, now)
            return
        stream = self.streams[number] = Stream(number, self._peer_stream_window)
        stream.headers, stream.head = headers, head
        happened.append((BEGUN, stream))
        if flags & END_STREAM:
            stream.is_read = True
            happened.append((ENDED, stream))

    def _refuse(self, number: int, fault: Http2Fault, now: float) -> None:
        """End a stream before it begins."""
        self._count_idle(now)
        self.out.append(frame_of(RESET_STREAM, 0, number, pack_u32(fault)))

    def _take_reset(self, number: int, payload: bytes, happened: list[Happening]) -> None:
        if len(payload) != 4:
            raise Http2Error(Http2Fault.FRAME_SIZE_ERROR, "a reset has four bytes")
        if not number or number > self._last:
            raise Http2Error(Http2Fault.PROTOCOL_ERROR, "a reset of a stream that has not begun")
        stream = self.streams.get(number)
        if stream is not None:
            self._drop(stream)
            happened.append((RESET, stream))

    def _take_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % 6:
            raise Http2Error(Http2Fault.FRAME_SIZE_ERROR, "settings have six bytes each")
        if flags & ACK:
            if payload:
                raise Http2Error(Http2Fault.FRAME_SIZE_ERROR, "an acknowledgement has no settings")
            return
        if len(payload) > 6 * _SETTINGS_MAX:
            raise Http2Error(Http2Fault.ENHANCE_YOUR_CALM, f"more than {_SETTINGS_MAX} settings")
        windows = [value for name, value in _PAIRS.iter_unpack(payload) if name == INITIAL_WINDOW]
        if windows:
            if max(windows) > WINDOW_MAX:
                raise Http2Error(Http2Fault.FLOW_CONTROL_ERROR, "a window is too large")
            self._resize(windows[-1])
        self.out.append(SETTINGS_ACK)

    # What the owner calls.

    def take_body(self, stream: Stream) -> bytearray:
        """Return what has come of a body, and forget it."""
        body, stream.body = stream.body, bytearray()
        self.body_size -= len(body)
        return body

    def note_taken(self, size: int) -> None:
        """Note that the owner has removed bytes from the front of a body."""
        self.body_size -= size

    def lose(self) -> list[Stream]:
        """Drop all streams, as the connection is lost; return them. Frames that wait are gone."""
        self._kept, self._kept_from, self.has_more = b"", 0, False
        streams = list(self.streams.values())
        for stream in streams:
            self._drop(stream)
        return streams


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2Error(Http2Fault.PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]
