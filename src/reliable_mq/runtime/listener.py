"""A listening socket and its connections, for brokers and name servers.

A peer that does not read its answers is not read from either, until it does. Bytes that are no
frame close their connection with one line in the log; nobody else notices.
"""

import asyncio
import ipaddress
import itertools
import logging
import resource
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol, cast

from reliable_mq.broker_core.state import Connection
from reliable_mq.errors import AddressRefused, FrameError, InvariantBroken
from reliable_mq.runtime.host_names import bound_sockets
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, decode_request
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.record import pack_host

log = logging.getLogger(__name__)

IDLE_SECONDS = 120.0  # Apache RocketMQ closes a channel that is silent this long
_UNSENT_PAUSE = 1024 * 1024  # a peer with this many unread bytes is not read from
# Pulls that wait are answered when messages come; a peer that leaves this much unread is cut off.
_UNSENT_MAX = 256 * 1024 * 1024
# One read may hold many requests for much. Of those whose answers may be large only so many are
# handled at once; the others wait until the peer has read.
_LARGE_AT_ONCE = 16
_SMALL_ANSWERS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    }
)
# Other peers wait while commands are handled. Of many that one read brings, those that do not fit
# into this time come behind what the others have sent.
_SLICE_SECONDS = 0.02
_BACKLOG = 1024
_JOINED_MAX = 4096


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Owner(Protocol):
    """Who gets the commands of a listener's connections."""

    def received(self, connection: Connection, commands: Iterable[Command]) -> bool | None:
        """Take the commands that one read brought.

        Return whether it is to be called again, with those that it has left: one of them takes so
        long that others come first.
        """

    def disconnected(self, connection: Connection) -> None:
        """Note that a connection is gone."""


class Listener:
    """Accepts connections; `send` answers on them by id.

    Args:
        owner: gets the commands.
        idle_seconds: a connection that is silent this long, both ways, is closed.
    """

    def __init__(self, owner: Owner, idle_seconds: float = IDLE_SECONDS) -> None:
        self._owner = owner
        self._idle_seconds = idle_seconds
        self._ids = itertools.count(1)
        self._open: dict[int, _ServerConnection] = {}
        self._servers: list[asyncio.Server] = []  # one for each address of the host
        self._idle_check: asyncio.TimerHandle | None = None
        self.port = 0

    async def bind(self, host: str, port: int) -> None:
        """Take the address; nobody is served before `serve`.

        With port 0 the system chooses one; `port` tells which.

        Raises:
            AddressRefused: when the address cannot be listened on.
        """
        _allow_many_connections()
        loop = asyncio.get_running_loop()
        try:
            sockets = await bound_sockets(host, port)
        except OSError as error:
            raise AddressRefused(
                f"{host}:{port}: cannot listen here ({_reason(error)}); choose another address"
            ) from error
        for bound in sockets:
            server = await loop.create_server(
                lambda: _ServerConnection(self, self._owner),
                sock=bound,
                backlog=_BACKLOG,
                start_serving=False,
            )
            self._servers.append(server)
        self.port = sockets[0].getsockname()[1]

    async def serve(self) -> None:
        """Accept connections; the owner is ready for commands.

        Raises:
            AddressRefused: when another process took the address meanwhile.
        """
        if not self._servers:
            raise InvariantBroken("a listener serves what it has bound")
        try:
            for server in self._servers:
                await server.start_serving()
        except OSError as error:
            raise AddressRefused(
                f"port {self.port}: cannot listen here ({_reason(error)}); choose another"
            ) from error
        self._check_idle()

    def send(self, connection_id: int, frames: list[bytes]) -> None:
        """Write frames to a connection; one that is gone gets nothing."""
        connection = self._open.get(connection_id)
        if connection is not None:
            connection.send(frames)

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        silent_since = loop.time() - self._idle_seconds
        for connection in list(self._open.values()):
            connection.close_if_idle(silent_since)
        self._idle_check = loop.call_later(self._idle_seconds / 4, self._check_idle)

    def opened(self, connection: "_ServerConnection") -> int:
        """Note a new connection and return its id."""
        connection_id = next(self._ids)
        self._open[connection_id] = connection
        return connection_id

    def closed(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        if self._open.pop(connection.id, None) is not None:
            self._owner.disconnected(connection)

    def close_connection(self, connection_id: int) -> None:
        """Close one connection, when it is still open."""
        connection = self._open.get(connection_id)
        if connection is not None:
            connection.close()

    def stop_reading(self) -> None:
        """Take no more commands; answers to those that came can still be sent."""
        for server in self._servers:
            server.close()
        for connection in self._open.values():
            connection.stop_reading()

    async def close(self) -> None:
        """Stop listening and close the connections; what was written to them still leaves."""
        if self._idle_check:
            self._idle_check.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self._open.values()):
            connection.close()
        for server in self._servers:
            await server.wait_closed()


class _ServerConnection(asyncio.Protocol):
    """One peer. Invariant L6: while its unread answers are many, its requests are not read."""

    __slots__ = (
        "_connection",
        "_is_busy",
        "_is_due",
        "_is_told",
        "_is_unread",
        "_last_used",
        "_later",
        "_listener",
        "_loop",
        "_owner",
        "_reader",
        "_reads_no_more",
        "_transport",
    )

    def __init__(self, listener: Listener, owner: Owner) -> None:
        self._listener = listener
        self._owner = owner
        self._reader = FrameReader()
        self._loop = asyncio.get_running_loop()
        self._last_used = self._loop.time()
        self._is_told = False  # whether the log says why the connection ends
        self._reads_no_more = False
        self._is_busy = False  # whether the owner has begun a command that goes on
        self._is_due = False  # whether `_go_on` comes by itself
        self._is_unread = False  # whether the peer leaves answers unread
        self._later: deque[Command] = deque()  # came, and wait until the peer has read
        self._transport: asyncio.Transport
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        peer = transport.get_extra_info("peername")
        if not peer:  # it is gone already
            self._transport.abort()
            return
        ip = _plain_ip(peer[0])
        self._connection = Connection(
            self._listener.opened(self), pack_host(ip, peer[1]), f"{ip}:{peer[1]}"
        )
        self._transport.set_write_buffer_limits(high=_UNSENT_PAUSE)

    def data_received(self, data: bytes) -> None:
        self._last_used = self._loop.time()
        if self._connection is None:
            return
        try:
            commands = [decode_request(frame) for frame in self._reader.feed(data)]
        except FrameError as error:
            self._tell(f"closed, {error}")
            self._transport.abort()
            return
        if not commands:
            return
        if not (self._later or self._is_busy) and (len(commands) == 1 or _are_small(commands)):
            self._is_busy = bool(self._owner.received(self._connection, commands))
            if self._is_busy:
                self._go_on_later()
            return
        is_first = not (self._later or self._is_busy)
        self._later.extend(commands)
        if is_first:
            self._go_on()

    def _go_on(self) -> None:
        """Hand on what waits, as much as may be handled at once, unless answers are unread."""
        self._is_due = False
        if self._connection is None or self._is_unread or self._transport.is_closing():
            return
        if self._later or self._is_busy:
            self._is_busy = bool(self._owner.received(self._connection, self._slice()))
        if self._later or self._is_busy:
            self._go_on_later()
        elif not (self._reads_no_more or self._is_unread or self._transport.is_closing()):
            self._transport.resume_reading()

    def _go_on_later(self) -> None:
        self._transport.pause_reading()
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._go_on)  # behind the answers to what was handled

    def _slice(self) -> Iterator[Command]:
        """Yield what waits, as much as may be handled at once."""
        end = self._loop.time() + _SLICE_SECONDS
        large = 0
        while self._later:
            command = self._later.popleft()
            yield command
            large += command.code not in _SMALL_ANSWERS
            if large == _LARGE_AT_ONCE or self._loop.time() > end:
                return

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._connection is None:
            return
        if self._reader.kept_size:
            self._tell(
                f"closed by the peer within a frame, {self._reader.kept_size} bytes of it had come"
            )
        self._listener.closed(self._connection)

    def pause_writing(self) -> None:
        self._is_unread = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_unread = False
        if self._later or self._is_busy:
            self._go_on_later()
        elif not self._reads_no_more and not self._transport.is_closing():
            self._transport.resume_reading()

    def send(self, frames: list[bytes]) -> None:
        if self._transport.is_closing():
            return
        self._last_used = self._loop.time()
        if len(frames) > 1 and max(map(len, frames)) < _JOINED_MAX:  # a copy costs less than a list
            self._transport.write(b"".join(frames))
        else:
            self._transport.writelines(frames)
        if self._is_unread and self._transport.get_write_buffer_size() > _UNSENT_MAX:
            self._tell("closed, it does not read its answers")
            self._transport.abort()

    def close_if_idle(self, silent_since: float) -> None:
        if self._last_used < silent_since and not self._transport.is_closing():
            self._tell("closed, it was silent too long", logging.INFO)
            self._transport.abort()

    def stop_reading(self) -> None:
        self._reads_no_more = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def close(self) -> None:
        self._is_told = True  # a peer may be within a frame; it was this side that ended
        self._transport.close()

    def _tell(self, what: str, level: int = logging.WARNING) -> None:
        """Say in the log why the connection ends, once."""
        if not self._is_told and self._connection is not None:
            self._is_told = True
            log.log(level, "%s: %s", self._connection.address, what)


def _are_small(commands: Iterable[Command]) -> bool:
    """Whether the answers to all of these are small."""
    return _SMALL_ANSWERS.issuperset([command.code for command in commands])


def _plain_ip(address: str) -> str:
    """Return a peer's address without its zone, an IPv4 address that came over IPv6 as IPv4."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    text = text.rpartition(": ")[2] or text  # asyncio wraps the system's words in its own
    return text[:1].lower() + text[1:]  # and writes them small, as here, in a sentence


def _allow_many_connections() -> None:
    """Let this process open as many files as the system allows it; many shells begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
