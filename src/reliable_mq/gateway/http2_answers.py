"""What a server sends on one HTTP/2 connection: answers, as far as the peer takes them. Pure.

Receives answers of calls, and what the peer says of its windows. Collects bytes to send in `out`.
What does not fit into a window waits for it; other streams go on meanwhile.
Source: RFC 9113, sections 5.2, 6.8 and 6.9.
"""

from collections import deque

from reliable_mq.errors import InvariantBroken
from reliable_mq.gateway.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    GO_AWAY,
    HEADERS,
    HELLO,
    RESET_STREAM,
    WINDOW_MAX,
    Http2Error,
    Http2Fault,
    Stream,
    frame_begin,
    frame_of,
    pack_u32,
)

_UPDATES_MAX = 10_000
_SMALL = 1024


class Http2Answers:
    """The half of a connection that sends.

    Invariants: `waiting_size` is the size of what waits for windows. A stream that is closed both
    ways is not in `streams`. A stream that waits for the connection's window is in `_blocked`.
    """

    def __init__(self) -> None:
        self.out: list[bytes] = [HELLO]
        self.streams: dict[int, Stream] = {}
        self.waiting_size = 0
        self.body_size = 0
        """Bytes of bodies that the owner has not taken."""
        self.is_going = False
        """Whether no more streams may begin."""
        self._last = 0  # the newest stream of the peer
        self._window = 65_535
        self._blocked: dict[int, Stream] = {}
        self._updates = 0  # so many updates of windows, and pings, are answers to data of ours
        self._peer_stream_window = 65_535

    def answer(self, stream: Stream, head: bytes, data: bytes, trailers: bytes) -> None:
        """Send a whole answer: a block of headers, data, and a block of trailers."""
        number, size = stream.id, len(data)
        if stream.is_answered or size > FRAME_SIZE or size > self._window or size > stream.window:
            self.send_head(stream, head)
            self.send_data(stream, data)
            self.end(stream, trailers)
            return
        if stream.is_reset:
            return
        self._window -= size
        self._updates = min(self._updates + 2, _UPDATES_MAX)
        named = pack_u32(number)
        self.out += (
            *(frame_begin(len(head), HEADERS, END_HEADERS), named, head),
            *(frame_begin(size, DATA, 0), named, data),
            *(frame_begin(len(trailers), HEADERS, END_HEADERS | END_STREAM), named, trailers),
        )
        self._close(stream)

    def send_head(self, stream: Stream, head: bytes) -> None:
        """Send the headers of an answer, unless they have left."""
        if not stream.is_answered and not stream.is_reset:
            stream.is_answered = True
            self.out.append(frame_of(HEADERS, END_HEADERS, stream.id, head))

    def send_data(self, stream: Stream, data: bytes) -> None:
        """Send data of an answer as soon as the peer takes it."""
        if stream.is_reset:
            return
        if stream.pending is None:
            stream.pending = deque()
        stream.pending.append(memoryview(data))
        self.waiting_size += len(data)
        if len(stream.pending) == 1:
            self._send_pending(stream)

    def end(self, stream: Stream, trailers: bytes) -> None:
        """Send the last headers, behind the data that waits."""
        if stream.is_reset:
            return
        stream.trailers = trailers
        if not stream.pending:
            self._finish(stream)

    def reset(self, stream: Stream, fault: Http2Fault) -> None:
        """End a stream at once."""
        if not stream.is_reset:
            self.out.append(frame_of(RESET_STREAM, 0, stream.id, pack_u32(fault)))
            self._drop(stream)

    def go_away(self, fault: Http2Fault, text: str = "") -> None:
        """Tell the peer to begin no more streams."""
        if not self.is_going or fault is not Http2Fault.NO_ERROR:
            self.is_going = True
            payload = pack_u32(self._last) + pack_u32(fault) + text.encode()[:200]
            self.out.append(frame_of(GO_AWAY, 0, 0, payload))

    # What the peer says of its windows.

    def _resize(self, window: int) -> None:
        """Use another first window, for the streams that have begun, too."""
        change, self._peer_stream_window = window - self._peer_stream_window, window
        for stream in list(self.streams.values()) if change else ():
            stream.window += change
            if stream.window > WINDOW_MAX:
                raise Http2Error(Http2Fault.FLOW_CONTROL_ERROR, "a window cannot grow so")
            if change > 0 and stream.pending:
                self._send_pending(stream)

    def _take_window(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(Http2Fault.FRAME_SIZE_ERROR, "a window update has four bytes")
        more = int.from_bytes(payload) & WINDOW_MAX
        if not number:
            self._window += more
            if not more or self._window > WINDOW_MAX:
                raise Http2Error(Http2Fault.FLOW_CONTROL_ERROR, "a window cannot grow so")
            while self._window > 0 and self._blocked:
                self._send_pending(next(iter(self._blocked.values())))
            return
        stream_of = self.streams.get(number)
        if stream_of is None:
            if number > self._last:
                raise Http2Error(
                    Http2Fault.PROTOCOL_ERROR, "a window of a stream that has not begun"
                )
            return
        stream_of.window += more
        if not more or stream_of.window > WINDOW_MAX:
            raise Http2Error(Http2Fault.FLOW_CONTROL_ERROR, "a window cannot grow so")
        if stream_of.pending:
            self._send_pending(stream_of)

    def _send_pending(self, stream: Stream) -> None:
        pending = stream.pending
        self._blocked.pop(stream.id, None)
        while pending:
            room = min(self._window, stream.window)
            data = pending[0]
            if room <= 0 < len(data):
                if stream.window > 0:
                    self._blocked[stream.id] = stream
                return
            size = max(0, min(room, FRAME_SIZE, len(data)))
            self.out.append(frame_of(DATA, 0, stream.id, bytes(data[:size])))
            if size == len(data) or size >= _SMALL:
                self._updates = min(self._updates + 2, _UPDATES_MAX)
            self._window -= size
            stream.window -= size
            self.waiting_size -= size
            if size == len(data):
                pending.popleft()
            else:
                pending[0] = data[size:]
        _note_left(stream, is_whole=True)
        if stream.trailers is not None:
            self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        trailers = stream.trailers or b""
        self.out.append(frame_of(HEADERS, END_HEADERS | END_STREAM, stream.id, trailers))
        self._close(stream)

    def _close(self, stream: Stream) -> None:
        """Forget a stream whose answer has left."""
        if not stream.is_read:  # the rest of its body is not wanted
            self.out.append(frame_of(RESET_STREAM, 0, stream.id, pack_u32(Http2Fault.NO_ERROR)))
        self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        stream.is_reset = True
        if self.streams.pop(stream.id, None) is not None:
            self.body_size -= len(stream.body)
            if stream.pending:
                self.waiting_size -= sum(map(len, stream.pending))
                stream.pending = None
                self._blocked.pop(stream.id, None)
                _note_left(stream, is_whole=False)

    def invariants(self) -> None:
        """Check what the class says.

        Raises:
            InvariantBroken: when it does not hold.
        """
        streams = self.streams.values()
        waiting = sum(sum(map(len, each.pending)) for each in streams if each.pending)
        if waiting != self.waiting_size:
            raise InvariantBroken(f"{waiting} bytes wait, not {self.waiting_size}")
        if sum(len(each.body) for each in streams) != self.body_size:
            raise InvariantBroken("the size of all bodies is wrong")
        if any(
            (each.pending and each.window > 0 and each.id not in self._blocked)
            or (not each.pending and each.id in self._blocked)
            for each in streams
        ):
            raise InvariantBroken("other streams are blocked")
        if any(each.is_reset for each in streams):
            raise InvariantBroken("a stream is closed and not forgotten")


def _note_left(stream: Stream, *, is_whole: bool) -> None:
    on_left, stream.on_left = stream.on_left, None
    if on_left is not None:
        on_left(is_whole)
