"""One connection of a gRPC client, from its bytes to calls, and from answers to its bytes.

It joins a socket of a listener with the rules of HTTP/2 and the calls of the gateway. A peer that
breaks the rules loses its connection, with one line in the log. Answers of one turn of the loop
leave together.
Source: gRPC over HTTP2 (grpc/grpc `PROTOCOL-HTTP2.md`).
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.gateway.answer_heads import HEAD, OK, trailers_of
from reliable_mq.gateway.asyncio_consuming import OnLeft
from reliable_mq.gateway.call_body import PREFIX_SIZE, BodyRefused, decode_call, size_max_of
from reliable_mq.gateway.caller import Caller, KindOfCall, kind_of_call, seconds_of
from reliable_mq.gateway.codes import RpcRefused
from reliable_mq.gateway.http2 import Http2Connection
from reliable_mq.gateway.http2_frames import (
    BEGUN,
    CAME,
    ENDED,
    RESET,
    STREAMS_MAX,
    Http2Error,
    Http2Fault,
    Stream,
)
from reliable_mq.gateway.message_facts import STREAMS
from reliable_mq.gateway.request_heads import RequestHead
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.connection_roles import ConnectionKeeper
from reliable_mq.runtime.descriptors import is_last
from reliable_mq.runtime.grpc_calls import Calls
from reliable_mq.runtime.grpc_telemetry import Telemetry
from reliable_mq.runtime.grpc_turns import FrameTurns
from reliable_mq.runtime.host_names import plain_ip
from reliable_mq.runtime.wrong_ports import at_grpc_port, tell
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.long_frame import AnyFrame
from reliable_mq.wire.record import pack_host

log = limited_log(__name__)

_UNSENT_PAUSE = 1024 * 1024
REQUEST_SECONDS = 120.0
"""So long a request may take to come in whole, and a client to send its settings."""
_CALL_SIZE = 1024  # of the headers that are kept while a call is open
_SMALL_SIZE = 16 * 1024  # of calls that are not counted: it would cost more than it is worth
# Codes of gRPC itself.
INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 3, 4, 8
UNIMPLEMENTED = 12
_NEVER = float("inf")


class GrpcConnection(FrameTurns):
    """One peer.

    Args:
        listener: counts it, and what it holds.
        calls: answers its calls.
    """

    def __init__(self, listener: ConnectionKeeper, calls: Calls) -> None:
        super().__init__(listener)
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._http2 = Http2Connection()
        self._connection: PeerConnection | None = None
        self._host = ""
        self._last_used = self._loop.time()
        self._is_flush_due = False
        self._is_told = False
        self._is_first = True
        self._noted = (0, 0)  # what the listener has counted: received and unsent bytes
        self._coming: dict[int, tuple[float, Stream]] = {}  # requests that are not whole, in order
        self._running: dict[int, int] = {}  # sizes of the calls that are not answered, by stream
        self._running_size = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection; see `ServerConnection`."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if not peer:  # the peer has left already
            self._transport.abort()
            return
        self._host = plain_ip(peer[0])
        if is_last(transport.get_extra_info("socket").fileno()):
            broker_events.CONNECTION_REFUSED.log(log, client=self._host)
            self._transport.abort()
            return
        number = self._listener.opened(self, self._host)
        if number is None:
            self._transport.abort()
            return
        address = f"{self._host}:{peer[1]}"
        self._connection = PeerConnection(number, pack_host(self._host, peer[1]), address)
        self._transport.set_write_buffer_limits(high=_UNSENT_PAUSE)

    def secured(self, transport: asyncio.Transport) -> None:
        """Use an encrypted transport from now on."""
        self._transport, self._last_used = transport, self._loop.time()

    def take(self, data: bytes, most: int) -> bool:
        """Handle frames of the peer; see `FrameTurns`."""
        self._last_used = now = self._loop.time()
        connection, http2 = self._connection, self._http2
        if connection is None:
            return False
        try:
            happened = http2.feed(data, now, most)
        except Http2Error as error:
            answer, why = at_grpc_port(data, self._listener.no_tls) if self._is_first else (b"", "")
            if why:
                http2.out = [answer]
                self._is_told = True
                tell(connection.address, why)
            self._flush()
            self._log_end(f"closed, {error}")
            self._transport.close()
            return False
        self._is_first = False
        calls = 0
        for kind, stream in happened:
            if kind == ENDED:
                calls += 1
                self._coming.pop(stream.id, None)
                if not stream.is_reset:
                    self._ended(stream)
            elif kind == BEGUN:
                self._coming[stream.id] = (now, stream)
                self._begun(stream, now)
            elif kind == CAME:
                self._came(stream)
            elif kind == RESET:
                self._coming.pop(stream.id, None)
                self._gone(stream)
        if self._coming and self._timer is None:
            self._timer = self._loop.call_later(REQUEST_SECONDS / 4, self._end_late)
        self._calls.hand_over(connection.id)
        if http2.out:
            self._flush_soon()
        self._note_sizes()
        self.note_calls(calls)
        return http2.has_more

    def _end_late(self) -> None:
        """End the streams whose request does not come."""
        self._timer = None
        latest = self._loop.time() - REQUEST_SECONDS
        for number, (began, stream) in list(self._coming.items()):
            if began > latest and not stream.is_reset:
                break
            del self._coming[number]
            if not stream.is_reset:
                text = f"the request has not come within {REQUEST_SECONDS:.0f} seconds"
                self.end(stream, DEADLINE_EXCEEDED, text)
        if self._coming:
            self._timer = self._loop.call_later(REQUEST_SECONDS / 4, self._end_late)
        self._note_sizes()

    def _begun(self, stream: Stream, now: float) -> None:
        """Look at the headers of a call."""
        head, headers = cast("RequestHead", stream.head), stream.headers
        stream.head, stream.headers = None, []
        kind = head.context
        if not isinstance(kind, KindOfCall):
            kind = head.context = kind_of_call(head)
        if kind.no_call:
            self._http2.end(stream, kind.no_call)
            del self._coming[stream.id]
            return
        name, (client_id, kept, refused) = kind.name, kind.sender
        seconds = seconds_of(head.timeout(headers))
        deadline = now + seconds if seconds is not None else _NEVER
        caller = Caller(client_id, self._host, kept, deadline)
        if name == "Telemetry":
            if refused is not None:
                self.end(stream, INVALID_ARGUMENT, str(refused))
                return
            stream.context = Telemetry(self, stream, caller)
        elif name:
            stream.context = (name, caller, refused)
        else:
            path = head.values.get(b":path", b"")
            self.end(stream, UNIMPLEMENTED, f"method {path[:200]!r} is not known")

    def _came(self, stream: Stream) -> None:
        """Look at a part of a body: a command of Telemetry may be whole."""
        if isinstance(stream.context, Telemetry):
            self._take_commands(stream, stream.context)
        elif isinstance(stream.context, tuple):
            self._fits(stream, stream.context[0])

    def _fits(self, stream: Stream, name: str) -> bool:
        """Whether a call is not too large; one that is too large ends."""
        most = size_max_of(name)
        if len(stream.body) <= most:
            return True
        self._http2.take_body(stream)
        self.end(stream, RESOURCE_EXHAUSTED, f"{name} has at most {most - PREFIX_SIZE} bytes")
        return False

    def _take_commands(self, stream: Stream, telemetry: Telemetry) -> None:
        for command in telemetry.commands(self._http2.note_taken):
            self._coming.pop(stream.id, None)
            self._calls.tell(self, stream, telemetry, command)

    def _ended(self, stream: Stream) -> None:
        """Answer a call whose request is whole."""
        context = stream.context
        if isinstance(context, Telemetry):
            self._take_commands(stream, context)
            self._calls.lost(context)
            self.end(stream, 0, "")
            return
        if not isinstance(context, tuple):
            return
        name, caller, refused = context
        if not self._fits(stream, name):
            return
        if len(self._running) >= STREAMS_MAX:  # a stream that is reset does not end its call
            self.end(stream, RESOURCE_EXHAUSTED, f"{STREAMS_MAX} calls are not answered yet")
            return
        call, body = None, bytes(self._http2.take_body(stream))
        size = self._running[stream.id] = len(body) + _CALL_SIZE
        self._running_size += size
        if refused is None and self._calls.answer_usual(self, stream, name, caller, body):
            return
        try:
            call = decode_call(name, body)
        except BodyRefused as fault:
            self.end(stream, fault.status, str(fault))
            return
        except RpcRefused as error:
            refused = refused or error
        if name in STREAMS:
            self._calls.answer_streamed(self, stream, name, caller, call, refused)
        else:
            self._calls.answer(self, stream, name, caller, call, refused)

    def _gone(self, stream: Stream) -> None:
        if isinstance(stream.context, Telemetry):
            self._calls.lost(stream.context)

    # What calls need.

    def respond(self, stream: Stream, response: Any) -> None:
        """Send the only answer of a call."""
        self._answered(stream)
        data = response.SerializeToString()
        self._http2.answer(stream, HEAD, b"\0" + len(data).to_bytes(4) + data, OK)
        self._flush_soon()

    def send_answers(self, stream: Stream, messages: Sequence[Any], on_left: OnLeft = None) -> bool:
        """Send some answers of a call; return whether the peer is there; see `Write`."""
        if stream.is_reset or self._transport.is_closing():
            return False
        parts: list[bytes] = []
        for message in messages:
            data = message.SerializeToString()
            parts += (b"\0" + len(data).to_bytes(4), data)
        self._http2.send_head(stream, HEAD)
        stream.on_left = on_left
        self._http2.send_data(stream, b"".join(parts))
        self._flush_soon()
        return True

    def end(self, stream: Stream, status: int, text: str) -> None:
        """End a call: with the status of gRPC, which is 0 if there were answers."""
        self._answered(stream)
        self._http2.send_head(stream, HEAD)
        self._http2.end(stream, trailers_of(status, text))
        self._flush_soon()

    def _answered(self, stream: Stream) -> None:
        """Forget a call that has ended."""
        self._coming.pop(stream.id, None)
        size = self._running.pop(stream.id, 0)
        self._running_size -= size
        if size > _SMALL_SIZE:
            self._note_sizes()

    def _flush_soon(self) -> None:
        """Write what there is; if several calls are open, with the answers of the others."""
        if self._is_flush_due:
            return
        if len(self._http2.streams) <= 1:
            self._flush()
        else:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        out = self._http2.out
        if out and not self._transport.is_closing():
            self._http2.out = []
            self._transport.write(b"".join(out))
        if self._http2.waiting_size or self._transport.get_write_buffer_size():
            self._note_sizes()

    def _note_sizes(self) -> None:
        """Tell the listener how much memory the peer takes."""
        if self._connection is None:
            return
        received, unsent = self.received_size, self.unsent_size
        if self._noted != (received, unsent):
            before, self._noted = self._noted, (received, unsent)
            if before[0] != received:
                self._listener.note_received(self._connection.id, received)
            if before[1] != unsent:
                self._listener.note_unsent(self._connection.id, unsent)

    # What the listener needs; see `ServerConnection`.

    @property
    def received_size(self) -> int:
        """Bytes in memory of requests that have not come in whole, or are not answered."""
        size = self._running_size + _CALL_SIZE * len(self._coming)
        return self._http2.kept_size + (size if size > _SMALL_SIZE else 0)

    @property
    def unsent_size(self) -> int:
        """Bytes in memory of unread answers."""
        if self._transport.is_closing():
            return 0
        return self._http2.waiting_size + self._transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget all calls."""
        if self._timer is not None:
            self._timer.cancel()
        self._coming.clear()
        self._running.clear()
        self._running_size = 0
        for stream in self._http2.lose():
            self._gone(stream)
        if self._connection is not None:
            self._listener.closed(self._connection)

    def resume_writing(self) -> None:
        """Take requests again."""
        self._note_sizes()
        super().resume_writing()

    def cut_off(self, why: str) -> None:
        """Close at once, and tell why."""
        self._log_end(why)
        self._transport.abort()

    def close_if_idle(self, silent_since: float) -> None:
        """Close if nothing has come for long."""
        if self._last_used < silent_since and not self._transport.is_closing():
            self._http2.go_away(Http2Fault.NO_ERROR, "idle")
            self._flush()
            self._transport.close()

    def stop_reading(self) -> None:
        """Begin no more calls."""
        if not self._transport.is_closing():
            self._http2.go_away(Http2Fault.NO_ERROR, "the server stops")
            self._flush()

    def finish(self) -> None:
        """Begin no more calls, and go on with the answers that are on their way."""
        self.stop_reading()

    @property
    def is_answering(self) -> bool:
        """Whether the peer has not got all that was written."""
        return bool(self._transport.get_write_buffer_size()) and not self._transport.is_closing()

    def close(self) -> None:
        """Close when all has left."""
        self._is_told = True
        self.stop_reading()
        self._transport.close()

    def send(self, frames: Sequence[AnyFrame]) -> None:
        """Send nothing: frames are for other connections."""

    def wake(self) -> None:
        """Do nothing: no call makes others wait."""

    def _log_end(self, why: str) -> None:
        if not self._is_told and self._connection is not None:
            self._is_told = True
            broker_events.CONNECTION_CUT.log(log, client=self._connection.address, reason=why)
