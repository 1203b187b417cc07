"""One connection of a listener, from its bytes to commands, and from answers to its bytes.

`TurnShares` says what one turn of the event loop may spend on all peers of its listeners.
A connection receives bytes, gives commands to the owner, and sends answers. What few send is
handled at once; other commands wait (`WaitingRequests`), and so does the rest of long answers.
Backpressure: while a peer does not read its answers, its requests are not read.
Bytes that are not a frame close the connection, with one line in the log.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import FrameError, StoreError
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.connection_roles import ConnectionKeeper, ConnectionOwner, HeldConnection
from reliable_mq.runtime.descriptors import is_last
from reliable_mq.runtime.host_names import plain_ip
from reliable_mq.runtime.outbox import Outbox
from reliable_mq.runtime.tls_connection import is_hello
from reliable_mq.runtime.waiting_requests import READ_AT_ONCE, WaitingRequests
from reliable_mq.runtime.wrong_ports import at_remoting_port, refuse, tell
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.command import Command
from reliable_mq.wire.frame import Frame, FrameReader
from reliable_mq.wire.long_frame import LONG_SIZE_MIN, AnyFrame
from reliable_mq.wire.record import pack_host

log = limited_log(__name__)

_READ_IN_SHORT = 8  # what `READ_AT_ONCE` is in a short turn
_UNSENT_PAUSE = 1024 * 1024  # a peer with more unread bytes than this is not read
_JOINED_MAX = 4096
_WHOLE_MAX = LONG_SIZE_MIN  # longer answers are written in pieces; only they may be a `LongFrame`
_LARGE_IN_TURN = 32  # requests with large answers


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Shares(NamedTuple):
    """What a turn of the loop may spend, in seconds.

    Attributes:
        turn: on connections with waiting requests.
        slice: on one of these, while it is alone.
        shared_slice: on one of these, while others wait.
        reads: on reads that bring more than one request.
        large: until it begins no more requests with large answers. One table may take as much work
            as many pulls.
        works: on requests that are handled in steps.
        written: bytes of answers that are written piece by piece.
    """

    turn: float
    slice: float
    shared_slice: float
    reads: float
    large: float
    works: float
    written: int


# A peer that asks for little waits for one or two turns. So turns are short while one peer sends
# single requests and another one sends more. Else longer turns save work.
_LONG_TURN = Shares(
    turn=0.001,
    slice=0.001,
    shared_slice=0.0005,
    reads=0.0005,
    large=0.001,
    works=0.001,
    written=1024 * 1024,
)
_SHORT_TURN = Shares(
    turn=0.00025,
    slice=0.00025,
    shared_slice=0.000125,
    reads=0.000125,
    large=0.00025,
    works=0.00015,
    written=128 * 1024,
)
_LATELY_SECONDS = 0.05  # after a single request


class TurnShares:
    """The shares of the turns of one event loop; its listeners have them together.

    Attributes:
        many_from: the last peer that sent several requests at once.
        single_at: when another one sent a single request, by the monotonic clock.
        written: bytes of pieces that were written in this turn.
    """

    def __init__(self) -> None:
        self.many_from: object | None = None
        self.single_at = 0.0
        self._large_left = _LARGE_IN_TURN
        self._large_end = 0.0  # after this time, the turn begins no other large request
        self._is_read_timed = False  # whether this loop turn has a time for reads
        self._read_end = 0.0  # after this time, what else is read waits for a turn
        self.written = 0

    @property
    def is_short(self) -> bool:
        """Whether somebody has sent a single request lately."""
        return time.monotonic() - self.single_at < _LATELY_SECONDS

    @property
    def now(self) -> Shares:
        """What a turn may spend now."""
        return _SHORT_TURN if self.is_short else _LONG_TURN

    def take_large(self) -> bool:
        """Whether this loop turn may begin one more request with a large answer. Counts it."""
        if self._large_left == _LARGE_IN_TURN:
            asyncio.get_running_loop().call_soon(self._refill)
            self._large_end = time.monotonic() + self.now.large
        elif not self._large_left or time.monotonic() >= self._large_end:
            return False
        self._large_left -= 1
        return True

    def _refill(self) -> None:
        self._large_left = _LARGE_IN_TURN

    def has_time(self) -> bool:
        """Whether this loop turn may handle more of what it reads, besides single requests."""
        if self._is_read_timed:
            return time.monotonic() < self._read_end
        self._is_read_timed = True
        self._read_end = time.monotonic() + self.now.reads
        asyncio.get_running_loop().call_soon(self._end_reads)
        return True

    def _end_reads(self) -> None:
        self._is_read_timed = False

    def note_written(self, size: int) -> None:
        """Note that so many bytes of an answer were written, and more are to come."""
        if not self.written:
            asyncio.get_running_loop().call_soon(self._end_writes)
        self.written += size

    def _end_writes(self) -> None:
        self.written = 0

    @property
    def may_write(self) -> bool:
        """Whether this loop turn may write another piece."""
        return self.written < self.now.written

    @property
    def is_spent(self) -> bool:
        """Whether this loop turn should end: it has begun many large requests, or written much."""
        return not self._large_left or not self.may_write


class ServerConnection(WaitingRequests):
    """One peer. Invariant L8: while many of its answers are unread, its requests are not read."""

    __slots__ = ("_is_admitted", "_is_told")

    def __init__(
        self, listener: ConnectionKeeper, owner: ConnectionOwner, *, is_admitted: bool = False
    ) -> None:
        super().__init__(listener, owner)
        self._is_admitted = is_admitted  # whether it counts for no limit of connections
        self._is_told = False  # whether the log has the reason of the end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        peer = transport.get_extra_info("peername")
        if not peer:  # the peer has left already
            self._transport.abort()
            return
        ip = plain_ip(peer[0])
        if is_last(transport.get_extra_info("socket").fileno()):
            broker_events.CONNECTION_REFUSED.log(log, client=ip)
            self._transport.abort()
            return
        number = self._listener.opened(self, "" if self._is_admitted else ip)
        if number is None:
            self._transport.abort()
            return
        host = pack_host(ip, peer[1])
        self._connection = PeerConnection(number, host, f"{ip}:{peer[1]}", self._is_admitted)
        known, self._decode = self._listener.decoder(host)
        self._reader = FrameReader(READ_AT_ONCE, known)
        self._transport.set_write_buffer_limits(high=_UNSENT_PAUSE)

    def secured(self, transport: asyncio.Transport) -> None:
        """Use an encrypted transport from now on; the peer has sent no request yet."""
        self._transport, self._last_used = transport, self._loop.time()

    def data_received(self, data: bytes) -> None:
        self._last_used = self._loop.time()
        if self._connection is None or self._take_alone(self._connection, data):
            return
        kept = self._reader.kept_size
        is_first = not (self._later or self._is_busy or self._reader.uncut)
        commands: Sequence[Command] = ()
        try:
            frames = self._reader.feed(data)
            if is_first and self._are_few():
                decode = self._decode
                commands = [decode(each) if isinstance(each, Frame) else each for each in frames]
        except FrameError as error:
            self._refuse(self._listener.no_tls if is_hello(data) else error, data)
            return
        begun = self._reader.kept_size
        if frames or not kept:
            self._frame_began = self._last_used
        if not frames:
            if self._reader.uncut:
                self._later_size += len(data)
            self._note_received()
            return
        if self._held:  # a peer that sends whole frames holds nothing
            self._note_held(0)
        if commands and self._fit(commands):
            if begun:
                self._note_received()
            left = iter(commands)
            self._is_busy = bool(self._owner.received(self._connection, left))
            if self._is_busy:
                self._leave(left, kept + len(data) - begun)
            return
        self._later_size += kept + len(data) - begun
        self._queue(commands or frames, is_first=is_first)

    def _take_alone(self, connection: PeerConnection, data: bytes) -> bool:
        """Have one recognised command handled if nothing else came and nothing waits."""
        if self._later or self._is_busy or self._held:
            return False
        command = self._reader.feed_alone(data)
        if command is None or command.code not in self._small_answers:
            return False
        if self._turns.many_from is not self:
            self._turns.single_at = time.monotonic()
        self._frame_began = self._last_used
        alone = (command,)
        self._is_busy = bool(self._owner.received(connection, alone))
        if self._is_busy:
            self._leave(alone, len(data))
        return True

    def _are_few(self) -> bool:
        """Whether all frames of a read may be handled at once, as far as their number tells."""
        count = self._reader.count
        if count < 2:
            return True
        self._turns.many_from = self
        if self._reader.uncut or (count > _READ_IN_SHORT and self._turns.is_short):
            return False
        return self._turns.has_time()

    def _refuse(self, why: object, data: bytes = b"") -> None:
        """Close the connection because of bytes that are not a command."""
        reason = at_remoting_port(data, self._listener.grpc_port)
        if reason and self._connection is not None:
            self._is_told = True
            tell(self._connection.address, reason)
            refuse(self, self._transport, data, reason)
            return
        self._log_end(f"closed, {why}")
        self._transport.abort()

    def _fit(self, commands: Sequence[Command]) -> bool:
        """Whether all commands may be handled at once."""
        if len(commands) == 1:
            if self._reader.count == 1 and self._turns.many_from is not self:
                self._turns.single_at = time.monotonic()
            return commands[0].code in self._small_answers or self._turns.take_large()
        return self._small_answers.issuperset([command.code for command in commands])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._connection is None:
            return
        if self._reader.kept_size:
            self._log_end(
                f"closed by the peer within a frame, {self._reader.kept_size} bytes of it had come"
            )
        self._outbox = Outbox()
        self._listener.closed(self._connection)

    def pause_writing(self) -> None:
        self._is_unread = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_unread = False
        self._transport.set_write_buffer_limits(high=_UNSENT_PAUSE)
        self._note_read()
        if self._has_more or self._later_size:
            self._handle_later()
        elif not self._reads_no_more and not self._transport.is_closing():
            self._transport.resume_reading()

    def send(self, frames: Sequence[AnyFrame]) -> None:
        """Write frames, or begin to write them piece by piece if they are long."""
        transport = self._transport
        if transport.is_closing():
            return
        self._last_used = self._loop.time()
        if self._has_unsent and not transport.get_write_buffer_size():
            self._note_read()
        longest = len(frames[0]) if len(frames) == 1 else max(map(len, frames))
        if longest > _WHOLE_MAX or self._outbox.frames:
            self._put(frames)
            return
        if len(frames) > 1 and longest < _JOINED_MAX:  # a copy costs less than a list
            transport.write(b"".join(frames))  # type: ignore[arg-type]
        else:
            transport.writelines(frames)  # type: ignore[arg-type]
        if transport.get_write_buffer_size():
            self._note_unsent(sum(map(len, frames)))

    def cut_off(self, why: str) -> None:
        self._log_end(why)
        self._transport.abort()

    def close_if_idle(self, silent_since: float) -> None:
        is_waiting = self._has_more and not self._is_unread
        if is_waiting or self._transport.is_closing():
            return
        if self._last_used < silent_since:
            self._log_end()
            self._transport.abort()
        elif self._reader.kept_size and self._frame_began < silent_since:
            self.cut_off(f"closed, {self._reader.kept_size} bytes of a frame came, and no more")

    def stop_reading(self) -> None:
        self._reads_no_more = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def finish(self) -> None:
        """Handle no more requests, and go on with the answers that are on their way."""
        self._is_finishing = True
        self.stop_reading()

    def close(self) -> None:
        self._is_told = True  # this side ends it, perhaps in the middle of a frame
        with contextlib.suppress(OSError, StoreError):
            while self._outbox.frames and not (self._is_unread or self._transport.is_closing()):
                self._transport.write(self._outbox.take())
        self._transport.close()

    def _log_end(self, why: str = "") -> None:
        """Log once why the connection ends; without a reason, it was silent too long."""
        if self._is_told or self._connection is None:
            return
        self._is_told = True
        if why:
            broker_events.CONNECTION_CUT.log(log, client=self._connection.address, reason=why)
        else:
            broker_events.CONNECTION_SILENT.log(log, client=self._connection.address)


def send_all(connections: Mapping[int, HeldConnection], answers: Sequence[Answer]) -> None:
    """Write answers to connections by their ids; those to one connection together."""
    if len(answers) == 1:
        ((connection_id, frame),) = answers
        if (connection := connections.get(connection_id)) is not None:
            connection.send([frame])
        return
    by_connection: defaultdict[int, list[AnyFrame]] = defaultdict(list)
    for connection_id, frame in answers:
        by_connection[connection_id].append(frame)
    for connection_id, frames in by_connection.items():
        if (connection := connections.get(connection_id)) is not None:
            connection.send(frames)
