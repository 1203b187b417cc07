"""One connection of a listener, from its bytes to commands, and from answers to its bytes.

`TurnShares` says what one turn of the event loop may spend on all peers of its listeners.
A connection receives bytes, gives commands to the owner, and sends answers. Commands of a peer are
handled in time slices, so that other peers get their turn. Long answers are written piece by piece.
Backpressure: while a peer does not read its answers, its requests are not read.
Bytes that are not a frame close the connection, with one line in the log.
"""

import asyncio
import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import FrameError, StoreError
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.connection_roles import (
    ConnectionKeeper,
    ConnectionOwner,
    Decode,
    HeldConnection,
)
from reliable_mq.runtime.descriptors import is_last
from reliable_mq.runtime.held_bytes import UnreadAnswers
from reliable_mq.runtime.host_names import plain_ip
from reliable_mq.runtime.outbox import Outbox
from reliable_mq.runtime.tls_connection import is_hello
from reliable_mq.runtime.wrong_ports import at_remoting_port, refuse, tell
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.command import Command, decode_request
from reliable_mq.wire.frame import Frame, FrameReader
from reliable_mq.wire.long_frame import LONG_SIZE_MIN, AnyFrame
from reliable_mq.wire.record import pack_host

log = limited_log(__name__)

_LARGE_IN_TURN = 32  # requests with large answers
_READ_AT_ONCE = 64  # of one read, at most so many requests are handled without a look at the clock
_READ_IN_SHORT = 8  # the same in a short turn
_UNSENT_PAUSE = 1024 * 1024  # a peer with more unread bytes than this is not read
# At most this many requests with large answers are handled at a time. The others wait until the
# peer has read the answers.
_LARGE_AT_ONCE = 4
_JOINED_MAX = 4096
_SMALL_MAX = 65_536  # for smaller answers, only the unsent rest counts
_WHOLE_MAX = LONG_SIZE_MIN  # longer answers are written in pieces; only they may be a `LongFrame`


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


class ServerConnection(asyncio.Protocol):
    """One peer. Invariant L8: while many of its answers are unread, its requests are not read."""

    __slots__ = (
        "_connection",
        "_decode",
        "_frame_began",
        "_has_unsent",
        "_held",
        "_is_admitted",
        "_is_busy",
        "_is_finishing",
        "_is_told",
        "_is_unread",
        "_last_used",
        "_later",
        "_later_size",
        "_listener",
        "_loop",
        "_outbox",
        "_owner",
        "_reader",
        "_reads_no_more",
        "_small_answers",
        "_transport",
        "_turns",
        "_unread",
    )

    def __init__(
        self, listener: ConnectionKeeper, owner: ConnectionOwner, *, is_admitted: bool = False
    ) -> None:
        self._listener = listener
        self._turns = listener.turns
        self._owner = owner
        self._is_admitted = is_admitted  # whether it counts for no limit of connections
        self._small_answers = owner.small_answers
        self._decode: Decode = decode_request
        self._reader: FrameReader[Command] = FrameReader(_READ_AT_ONCE, {})
        self._loop = asyncio.get_running_loop()
        self._last_used = self._loop.time()
        self._is_told = False  # whether the log has the reason of the end
        self._reads_no_more = False
        self._is_finishing = False  # whether waiting requests are left undone
        self._is_busy = False  # whether the owner is in the middle of a command
        self._is_unread = False  # whether the peer has too many unread answers
        self._later: deque[Command | Frame] = deque()  # what was received and waits
        self._later_size = 0  # bytes received for `_later`, until all of it is done
        self._has_unsent = False  # whether the listener has counted unread answers
        self._unread = UnreadAnswers()
        self._outbox = Outbox()  # answers that are written piece by piece
        self._held = 0  # received bytes that the listener has counted
        self._frame_began = 0.0  # when the first byte of the incomplete frame came
        self._transport: asyncio.Transport
        self._connection: PeerConnection | None = None

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
        self._reader = FrameReader(_READ_AT_ONCE, known)
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
            if len(commands) == 1 and not isinstance(frames[0], Frame):  # it was recognised
                left: Iterable[Command] = commands
                self._is_busy = bool(self._owner.received_known(self._connection, commands[0]))
            else:
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
        self._is_busy = bool(self._owner.received_known(connection, command))
        if self._is_busy:
            self._leave((command,), len(data))
        return True

    def _queue(self, requests: Sequence[Command | Frame], *, is_first: bool) -> None:
        """Let requests wait for a turn, behind those that wait."""
        self._later.extend(requests)
        self._note_received()
        if not is_first:
            return
        if self._turns.is_short or not self._turns.has_time():  # it has its slice, and only that
            self._handle_later()
        else:
            self.handle_waiting()

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

    def _leave(self, commands: Iterable[Command], size: int) -> None:
        """Queue the commands that the owner has left. The one in progress counts as held, too."""
        self._later.extend(commands)
        self._later_size = size
        self._note_received()
        self._transport.pause_reading()  # the owner wakes it

    def wake(self) -> None:
        """Let the owner have the requests behind one that took long."""
        if self._is_busy:
            self._is_busy = False
            self._handle_later()

    def _fit(self, commands: Sequence[Command]) -> bool:
        """Whether all commands may be handled at once."""
        if len(commands) == 1:
            if self._reader.count == 1 and self._turns.many_from is not self:
                self._turns.single_at = time.monotonic()
            return commands[0].code in self._small_answers or self._turns.take_large()
        return self._small_answers.issuperset([command.code for command in commands])

    @property
    def received_size(self) -> int:
        """Bytes in memory of the incomplete frame and the waiting requests."""
        return self._reader.kept_size + self._later_size

    @property
    def unsent_size(self) -> int:
        """Bytes in memory of unread answers."""
        return self._unread.held(self._transport.get_write_buffer_size() + self._outbox.held)

    def _note_received(self) -> None:
        size = self.received_size
        if size != self._held:
            self._note_held(size)

    def _note_held(self, size: int) -> None:
        if self._connection is not None:
            self._held = size
            self._listener.note_received(self._connection.id, size)

    def handle_waiting(self) -> None:
        """Handle waiting commands for one slice, unless the peer has too many unread answers."""
        if self._connection is None or self._is_unread or self._transport.is_closing():
            return
        if self._outbox.frames:
            self._write_some()
        elif self._has_more:
            self._is_busy = bool(self._owner.received(self._connection, self._slice()))
        if self._later_size and not (self._later or self._is_busy or self._reader.uncut):
            self._later_size = 0
            self._note_received()
        if self._is_busy and not self._outbox.frames:
            self._transport.pause_reading()  # the owner wakes it
        elif self._has_more:
            self._handle_later()
        elif not (self._reads_no_more or self._is_unread or self._transport.is_closing()):
            # The peer was not read while its requests waited: restart its idle time.
            self._last_used = self._frame_began = self._loop.time()
            self._transport.resume_reading()

    @property
    def _has_more(self) -> bool:
        if self._outbox.frames or self._is_finishing:
            return bool(self._outbox.frames)
        return bool(self._later or self._is_busy or self._reader.uncut)

    def _handle_later(self) -> None:
        self._transport.pause_reading()
        self._listener.handle_later(self)  # after the answers to the handled commands are sent

    def _slice(self) -> Iterator[Command]:
        """Yield waiting commands for one slice."""
        end = time.monotonic() + self._listener.slice_seconds  # the loop's clock is in whole ms
        large = 0
        while not (self._is_unread or self._outbox.frames):
            command = self._next_command()
            if command is None:
                return
            if command.code not in self._small_answers:
                large += 1
                if large > _LARGE_AT_ONCE or not self._turns.take_large():
                    return
            self._later.popleft()
            yield command
            if time.monotonic() > end:
                return

    def _next_command(self) -> Command | None:
        """Return the oldest waiting command; None: there is none, or the connection is closed."""
        try:
            if not self._later and self._reader.uncut:
                self._later.extend(self._reader.cut_more())
            if not self._later:
                return None
            oldest = self._later[0]
            if isinstance(oldest, Command):
                return oldest
            command = self._later[0] = self._decode(oldest)
        except FrameError as error:
            self._later.clear()
            self._refuse(error)
            return None
        return command

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

    def _note_unsent(self, size: int) -> None:
        """Note that answers of `size` bytes, which stay in memory together, may be unread."""
        unsent = self._transport.get_write_buffer_size() + self._outbox.held
        if self._connection is not None:
            self._has_unsent = True
            if size > _SMALL_MAX or unsent > _SMALL_MAX:
                if size:
                    self._unread.note_written(size)
                unsent = self._unread.held(unsent)
            self._listener.note_unsent(self._connection.id, unsent)

    def _put(self, frames: Sequence[AnyFrame]) -> None:
        """Write these frames piece by piece, in later turns. Requests wait until they are read."""
        self._outbox.put(frames)
        if not self._is_unread:
            self._handle_later()
        for frame in frames:
            if isinstance(frame, bytes):
                self._note_unsent(len(frame))

    def _write_some(self) -> None:
        """Write pieces as long as this turn of the loop may, and the peer reads."""
        self._last_used = self._loop.time()
        if self._transport.get_write_buffer_size():  # the system has not taken the last pieces
            self._transport.set_write_buffer_limits(high=0)  # `resume_writing` comes when it has
            return
        end = self._turns.written + (self._turns.now.written + 1) // 2
        while self._outbox.frames and self._turns.may_write and self._turns.written < end:
            try:
                piece = self._outbox.take()
            except (OSError, StoreError) as error:
                self.cut_off(f"closed, an answer cannot be read any more: {error}")
                return
            self._turns.note_written(len(piece))
            self._transport.write(piece)
        if self._transport.get_write_buffer_size():
            self._note_unsent(0)

    def _note_read(self) -> None:
        """Note that the peer has read its answers."""
        if self._has_unsent and self._connection is not None:
            self._has_unsent = self._outbox.held > 0
            self._listener.note_unsent(self._connection.id, self._outbox.held)

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

    @property
    def is_answering(self) -> bool:
        """Whether the peer has not got all of its answers, and may still get them."""
        is_unsent = self._outbox.frames or self._transport.get_write_buffer_size()
        return bool(is_unsent) and not self._transport.is_closing()

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
