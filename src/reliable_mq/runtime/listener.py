"""A listening socket and its connections, for brokers and name servers.

A connection receives bytes, gives commands to the owner, and sends answers. Commands of a peer are
handled in time slices, so that other peers get their turn.
Backpressure: while a peer does not read its answers, the listener does not read its requests.
Bytes that are not a frame close only their connection, with one line in the log.
The memory used for all peers together is limited: incomplete frames, waiting requests, and unread
answers.
"""

import asyncio
import ipaddress
import itertools
import resource
import socket
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, cast

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import AddressRefused, FrameError, InvariantBroken
from reliable_mq.host_and_port import unmapped
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.acceptor import Acceptor
from reliable_mq.runtime.connection_limits import Admission, ConnectionLimits
from reliable_mq.runtime.descriptors import is_last
from reliable_mq.runtime.held_bytes import HeldBytes, UnreadAnswers
from reliable_mq.runtime.host_names import bound_sockets, connected_pair, reason_of
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_connection import TlsGate, is_hello
from reliable_mq.runtime.tls_settings import TlsMode
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.command import Command, decode_request
from reliable_mq.wire.frame import Frame, FrameReader
from reliable_mq.wire.record import pack_host

log = limited_log(__name__)

IDLE_SECONDS = 120.0  # Apache RocketMQ closes a channel that is silent this long
_LARGE_IN_TURN = 32  # requests with large answers
_READ_AT_ONCE = 64  # of one read, at most so many requests are handled without a look at the clock
_UNSENT_PAUSE = 1024 * 1024  # a peer with more unread bytes than this is not read
# At most this many requests with large answers are handled at a time. The others wait until the
# peer has read the answers.
_LARGE_AT_ONCE = 4
_JOINED_MAX = 4096
_SMALL_MAX = 65_536  # for smaller answers, only the unsent rest counts


class _Shares(NamedTuple):
    """Seconds that a turn of the loop may spend.

    Attributes:
        turn: on connections with waiting requests.
        slice: on one of these, while it is alone.
        shared_slice: on one of these, while others wait.
        reads: on reads that bring more than one request.
        large: until it begins no more requests with large answers. One table may take as much work
            as many pulls.
    """

    turn: float
    slice: float
    shared_slice: float
    reads: float
    large: float


# A peer that asks for little waits for one or two turns. So turns are short while one peer sends
# single requests and another one sends more. Else longer turns save work.
_LONG_TURN = _Shares(turn=0.001, slice=0.001, shared_slice=0.0005, reads=0.0005, large=0.001)
_SHORT_TURN = _Shares(*(seconds / 4 for seconds in _LONG_TURN))
_LATELY_SECONDS = 0.05  # after a single request

Decode = Callable[[Frame], Command]


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class ConnectionOwner(Protocol):
    """Receives the commands of a listener's connections.

    Attributes:
        small_answers: codes of requests whose answers are always small.
    """

    small_answers: frozenset[int]

    def received(self, connection: PeerConnection, commands: Iterable[Command]) -> bool | None:
        """Handle the commands of one read.

        Returns:
            Whether to call it again with the commands left in the iterator. It leaves some when one
            command takes so long that other connections must come first.
        """

    def disconnected(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""


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
        "_is_told",
        "_is_unread",
        "_last_used",
        "_later",
        "_later_size",
        "_listener",
        "_loop",
        "_owner",
        "_reader",
        "_reads_no_more",
        "_small_answers",
        "_transport",
        "_unread",
    )

    def __init__(
        self, listener: "Listener", owner: ConnectionOwner, *, is_admitted: bool = False
    ) -> None:
        self._listener = listener
        self._owner = owner
        self._is_admitted = is_admitted  # whether it counts for no limit of connections
        self._small_answers = owner.small_answers
        self._decode = listener.decode
        self._reader = FrameReader()
        self._loop = asyncio.get_running_loop()
        self._last_used = self._loop.time()
        self._is_told = False  # whether the log has the reason of the end
        self._reads_no_more = False
        self._is_busy = False  # whether the owner is in the middle of a command
        self._is_unread = False  # whether the peer has too many unread answers
        self._later: deque[Command | Frame] = deque()  # what was received and waits
        self._later_size = 0  # bytes received for `_later`, until it is empty
        self._has_unsent = False  # whether the listener has counted unread answers
        self._unread = UnreadAnswers()
        self._held = 0  # received bytes that the listener has counted
        self._frame_began = 0.0  # when the first byte of the incomplete frame arrived
        self._transport: asyncio.Transport
        self._connection: PeerConnection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        peer = transport.get_extra_info("peername")
        if not peer:  # the peer has left already
            self._transport.abort()
            return
        ip = _plain_ip(peer[0])
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
        self._transport.set_write_buffer_limits(high=_UNSENT_PAUSE)

    def secured(self, transport: asyncio.Transport) -> None:
        """Use an encrypted transport from now on; the peer has sent no request yet."""
        self._transport = transport
        self._last_used = self._loop.time()

    def data_received(self, data: bytes) -> None:
        self._last_used = self._loop.time()
        if self._connection is None:
            return
        kept = self._reader.kept_size
        commands: Sequence[Command] = ()
        try:
            frames = self._reader.feed(data)
            is_first = not (self._later or self._is_busy)
            if is_first and self._are_few(frames):
                commands = list(map(self._decode, frames))
        except FrameError as error:
            self._refuse(self._listener.no_tls if is_hello(data) else error)
            return
        begun = self._reader.kept_size
        if frames or not kept:
            self._frame_began = self._last_used
        if not frames:
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
                self._leave(left, len(data))
            return
        self._later.extend(commands or frames)
        self._later_size += kept + len(data) - begun
        self._note_received()
        if not is_first:
            return
        if self._listener.has_time():
            self.handle_waiting()
        else:
            self._handle_later()

    def _are_few(self, frames: Sequence[Frame]) -> bool:
        """Whether all frames of a read may be handled at once, as far as their number tells."""
        if len(frames) < 2:
            return True
        self._listener.many_from = self
        return len(frames) <= _READ_AT_ONCE and self._listener.has_time()

    def _refuse(self, why: object) -> None:
        """Close the connection because of bytes that are not a command."""
        self._log_end(f"closed, {why}")
        self._transport.abort()

    def _leave(self, commands: Iterable[Command], size: int) -> None:
        """Queue the commands that the owner has left. The whole read counts as held bytes."""
        self._later.extend(commands)
        if self._later:
            self._later_size = size
            self._note_received()
        self._handle_later()

    def _fit(self, commands: Sequence[Command]) -> bool:
        """Whether all commands may be handled at once."""
        if len(commands) == 1:
            if self._listener.many_from is not self:
                self._listener.single_at = self._last_used
            return commands[0].code in self._small_answers or self._listener.take_large()
        return self._small_answers.issuperset([command.code for command in commands])

    @property
    def received_size(self) -> int:
        """Bytes in memory of the incomplete frame and the waiting requests."""
        return self._reader.kept_size + self._later_size

    @property
    def unsent_size(self) -> int:
        """Bytes in memory of unread answers."""
        return self._unread.held(self._transport.get_write_buffer_size())

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
        if self._later or self._is_busy:
            self._is_busy = bool(self._owner.received(self._connection, self._slice()))
        if not self._later and self._later_size:
            self._later_size = 0
            self._note_received()
        if self._later or self._is_busy:
            self._handle_later()
        elif not (self._reads_no_more or self._is_unread or self._transport.is_closing()):
            # The peer was not read while its requests waited: restart its idle time.
            self._last_used = self._frame_began = self._loop.time()
            self._transport.resume_reading()

    def _handle_later(self) -> None:
        self._transport.pause_reading()
        self._listener.handle_later(self)  # after the answers to the handled commands are sent

    def _slice(self) -> Iterator[Command]:
        """Yield waiting commands for one slice."""
        end = time.monotonic() + self._listener.slice_seconds  # the loop's clock is in whole ms
        large = 0
        while self._later and not self._is_unread:
            command = self._next_command()
            if command is None:
                return
            if command.code not in self._small_answers:
                large += 1
                if large > _LARGE_AT_ONCE or not self._listener.take_large():
                    return
            self._later.popleft()
            yield command
            if time.monotonic() > end:
                return

    def _next_command(self) -> Command | None:
        """Return the oldest waiting command; None: it is none, and the connection is closed."""
        oldest = self._later[0]
        if isinstance(oldest, Command):
            return oldest
        try:
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
        self._listener.closed(self._connection)

    def pause_writing(self) -> None:
        self._is_unread = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_unread = False
        self._note_read()
        if self._later or self._is_busy:
            self._handle_later()
        elif not self._reads_no_more and not self._transport.is_closing():
            self._transport.resume_reading()

    def send(self, frames: list[bytes]) -> None:
        if self._transport.is_closing():
            return
        self._last_used = self._loop.time()
        if self._has_unsent and not self._transport.get_write_buffer_size():
            self._note_read()
        if len(frames) > 1 and max(map(len, frames)) < _JOINED_MAX:  # a copy costs less than a list
            self._transport.write(b"".join(frames))
        else:
            self._transport.writelines(frames)
        unsent = self._transport.get_write_buffer_size()
        if unsent and self._connection is not None:
            self._has_unsent = True
            size = sum(map(len, frames))
            if size > _SMALL_MAX or unsent > _SMALL_MAX:
                self._unread.note_written(size)
                unsent = self._unread.held(unsent)
            self._listener.note_unsent(self._connection.id, unsent)

    def _note_read(self) -> None:
        """Note that the peer has read its answers."""
        if self._has_unsent and self._connection is not None:
            self._has_unsent = False
            self._listener.note_unsent(self._connection.id, 0)

    def cut_off(self, why: str) -> None:
        self._log_end(why)
        self._transport.abort()

    def close_if_idle(self, silent_since: float) -> None:
        is_waiting = (self._later or self._is_busy) and not self._is_unread
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

    def close(self) -> None:
        self._is_told = True  # this side ends it, perhaps in the middle of a frame
        self._transport.close()

    def _log_end(self, why: str = "") -> None:
        """Log once why the connection ends; without a reason, it was silent too long."""
        if not self._is_told and self._connection is not None:
            self._is_told = True
            client = self._connection.address
            if why:
                broker_events.CONNECTION_CUT.log(log, client=client, reason=why)
            else:
                broker_events.CONNECTION_SILENT.log(log, client=client)


class Listener:
    """Accepts connections. `send` answers on a connection by its id.

    Invariant L7: while a connection waits for its next slice, a turn is scheduled.

    Args:
        owner: receives the commands.
        idle_seconds: a connection that is silent in both directions for this long is closed.
        limits: the most connections, and what they may hold together.
        tls: the mode and the certificate; None: all connections are plain.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        idle_seconds: float = IDLE_SECONDS,
        *,
        limits: ConnectionLimits | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._owner = owner
        self._idle_seconds = idle_seconds
        self._tls = tls
        limits = limits or ConnectionLimits()
        self._admission = Admission(limits)
        self._ids = itertools.count(1)
        self.connections: dict[int, ServerConnection] = {}  # by id; others only read it
        self._acceptors: list[Acceptor] = []  # one for each address of the host
        self._is_stopped = False
        self._idle_check: asyncio.TimerHandle | None = None
        self._received = HeldBytes(limits.received_size, self._received_by)
        self._unsent = HeldBytes(limits.unsent_size, self._unsent_to)
        self.many_from: ServerConnection | None = None  # the last one to send several at once
        self.single_at = 0.0  # when another one sent a single request
        self._large_left = _LARGE_IN_TURN
        self._large_end = 0.0  # after this time, the turn begins no other large request
        self._is_read_timed = False  # whether this loop turn has a time for reads
        self._read_end = 0.0  # after this time, what else is read waits for a turn
        self._waiting: OrderedDict[ServerConnection, None] = OrderedDict()  # with waiting requests
        self._is_turn_due = False
        self.decode: Decode = decode_request
        self.port = 0
        self.ips: list[str] = []  # the addresses at which it listens

    async def bind(self, host: str, port: int) -> None:
        """Bind the address. Connections are accepted only after `serve`.

        With port 0 the system chooses a port; the attribute `port` has it.

        Raises:
            AddressRefused: when the address cannot be bound.
        """
        _allow_many_connections()
        sockets = await self.bind_also(host, port)
        self.port = sockets[0].getsockname()[1]
        self.ips = [_plain_ip(bound.getsockname()[0]) for bound in sockets]

    async def bind_also(self, host: str, port: int) -> list[socket.socket]:
        """Bind a further port; return its sockets.

        Raises:
            AddressRefused: when the address cannot be bound.
        """
        sockets = await bound_sockets(host, port)
        self._acceptors += [Acceptor(each, self._is_hasty, self._accepted) for each in sockets]
        return sockets

    def _is_hasty(self, ip: str) -> bool:
        """Whether an address connects too often; see `Admission`."""
        refusal = self._admission.arrive(_plain_ip(ip), time.monotonic())
        if refusal:
            broker_events.CONNECTION_TOO_MANY.log(log, client=ip, reason=refusal)
        return bool(refusal)

    def _accepted(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        connection = ServerConnection(self, self._owner)
        if self._tls is not None and self._tls.decides_by_first_byte:
            return TlsGate(connection, self._tls)
        return connection

    async def private_socket(self) -> socket.socket:
        """Return a socket that is connected to this listener, for this process itself.

        The connection is plain whatever the mode of TLS is, and counts for no limit. Nobody else
        can have it: it comes from a socket that listens for this one connection.
        """
        ours, theirs = connected_pair()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ServerConnection(self, self._owner, is_admitted=True), sock=theirs
            )
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return ours

    @property
    def no_tls(self) -> str:
        """Why a peer that begins a TLS handshake is closed."""
        is_off = self._tls is None or self._tls.settings.mode is TlsMode.DISABLED
        return "it speaks TLS, and " + (
            "tls.server.mode is disabled" if is_off else "there is no tls.server.certPath"
        )

    @property
    def limits(self) -> ConnectionLimits:
        """The limits; they may be changed while it listens. Lower ones close nothing at once."""
        return self._admission.limits

    @limits.setter
    def limits(self, limits: ConnectionLimits) -> None:
        self._admission.limits = limits
        self._received.size_max = limits.received_size
        self._unsent.size_max = limits.unsent_size

    @property
    def refused(self) -> Counter[str]:
        """How many connections were refused since the start, by the limit; see `Admission`."""
        return self._admission.refused

    async def serve(self, decode: Decode = decode_request) -> None:
        """Begin to accept connections. The owner must be ready for commands.

        Args:
            decode: makes a command of a frame. Default: sends and pulls have no other fields.

        Raises:
            AddressRefused: when another process has taken the address meanwhile.
        """
        if not self._acceptors:
            raise InvariantBroken("serve() was called before bind()")
        self.decode = decode
        try:
            for acceptor in self._acceptors:
                acceptor.start()
        except OSError as error:
            raise AddressRefused(
                f"port {self.port}: cannot listen here ({reason_of(error)}); choose another"
            ) from error
        self._check_idle()

    def send(self, connection_id: int, frames: list[bytes]) -> None:
        """Write frames to a connection. Do nothing when it is closed."""
        connection = self.connections.get(connection_id)
        if connection is not None:
            connection.send(frames)

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        silent_since = loop.time() - self._idle_seconds
        for connection in list(self.connections.values()):
            connection.close_if_idle(silent_since)
        self._idle_check = loop.call_later(self._idle_seconds / 4, self._check_idle)

    def _received_by(self, connection_id: int) -> int:
        connection = self.connections.get(connection_id)
        return connection.received_size if connection else 0

    def _unsent_to(self, connection_id: int) -> int:
        connection = self.connections.get(connection_id)
        return connection.unsent_size if connection else 0

    def note_received(self, connection_id: int, size: int) -> None:
        """Note how many bytes of a peer's incomplete frames and waiting requests are in memory."""
        for gone in self._received.set_size(connection_id, size):
            self._cut_off(gone, "closed, frames that have not come in whole take too much memory")

    def note_unsent(self, connection_id: int, size: int) -> None:
        """Note how many bytes of a peer's unread answers are in memory."""
        for gone in self._unsent.set_size(connection_id, size):
            self._cut_off(gone, "closed, it does not read its answers")

    def _cut_off(self, connection_id: int, why: str) -> None:
        connection = self.connections.get(connection_id)
        if connection is not None:
            connection.cut_off(why)

    def take_large(self) -> bool:
        """Whether this loop turn may begin one more request with a large answer. Counts it."""
        if self._large_left == _LARGE_IN_TURN:
            asyncio.get_running_loop().call_soon(self._refill)
            self._large_end = time.monotonic() + self._shares.large
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
        self._read_end = time.monotonic() + self._shares.reads
        asyncio.get_running_loop().call_soon(self._end_reads)
        return True

    def _end_reads(self) -> None:
        self._is_read_timed = False

    @property
    def slice_seconds(self) -> float:
        """Seconds that one connection may use in one go."""
        return self._shares.shared_slice if self._waiting else self._shares.slice

    @property
    def _shares(self) -> _Shares:
        is_short = time.monotonic() - self.single_at < _LATELY_SECONDS
        return _SHORT_TURN if is_short else _LONG_TURN

    def handle_later(self, connection: ServerConnection) -> None:
        """Call the connection's `handle_waiting` in a later turn, after those that wait.

        So a peer that always sends more cannot use up every turn.
        """
        self._waiting[connection] = None
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._is_turn_due = False
        end = time.monotonic() + self._shares.turn
        for _ in range(len(self._waiting)):
            connection, _none = self._waiting.popitem(last=False)
            try:
                connection.handle_waiting()
            except Exception:  # noqa: BLE001 - it is logged
                broker_events.CONNECTION_BROKEN.log(log, traceback_of=True)
                connection.cut_off("closed, its requests cannot be handled")
            if not self._large_left or time.monotonic() >= end:
                break
        if self._waiting:
            self._schedule_turn()

    def invariants(self) -> None:
        """Check L7.

        Raises:
            InvariantBroken: when a connection waits and no turn is scheduled.
        """
        if self._waiting and not self._is_turn_due:
            raise InvariantBroken(f"{len(self._waiting)} connections wait, and no turn is due")

    def opened(self, connection: ServerConnection, ip: str) -> int | None:
        """Record a new connection and return its id; None: there are too many, or it is too late.

        `ip` is the address for which it counts; "": it counts for none.
        """
        if self._is_stopped:
            return None
        connection_id = next(self._ids)
        refusal = self._admission.admit(connection_id, ip) if ip else ""
        if refusal:
            broker_events.CONNECTION_TOO_MANY.log(log, client=ip, reason=refusal)
            return None
        self.connections[connection_id] = connection
        return connection_id

    def closed(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""
        gone = self.connections.pop(connection.id, None)
        if gone is not None:
            self._admission.leave(connection.id)
            self._waiting.pop(gone, None)
            if self.many_from is gone:
                self.many_from = None
            self._received.set_size(connection.id, 0)
            self._unsent.set_size(connection.id, 0)
            self._owner.disconnected(connection)

    def close_connection(self, connection_id: int) -> None:
        """Close a connection, if it is still open."""
        connection = self.connections.get(connection_id)
        if connection is not None:
            connection.close()

    def stop_reading(self) -> None:
        """Accept no more commands. Answers to earlier commands can still be sent."""
        self._is_stopped = True
        for acceptor in self._acceptors:
            acceptor.stop()
        for connection in self.connections.values():
            connection.stop_reading()

    async def close(self) -> None:
        """Stop listening and close the connections. Answers already written are still sent."""
        if self._idle_check:
            self._idle_check.cancel()
        self._is_stopped = True
        for acceptor in self._acceptors:
            await acceptor.close()
        for connection in list(self.connections.values()):
            connection.close()


def _plain_ip(address: str) -> str:
    """Return a peer's address without its zone; an IPv4 address mapped into IPv6 as IPv4."""
    return str(unmapped(ipaddress.ip_address(address.partition("%")[0])))


def _allow_many_connections() -> None:
    """Raise this process's limit of open files to the hard limit; shells often start with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
