"""Accepts the connections of one listening socket, few in each turn of the loop.

Receives a bound socket. Gives admitted connections to the loop, each with a new protocol. It knows
nothing of what they speak.

Setting up a connection takes some 0.2 ms. So a turn sets up two, and then the socket rests for a
millisecond: a flood of connects has a part of the loop's time, and who is connected gets the rest.
A connection of somebody who connects too often gets no protocol. It is held for a second, unread,
and then reset: so a client that connects again and again is slowed down.
"""

import asyncio
import errno
import socket
import struct
from collections import deque
from collections.abc import Callable

from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.descriptors import is_last
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

HELD_SECONDS = 1.0
"""How long a refused connection is held before it is reset."""
HELD_MAX = 256
"""The most refused connections that are held; beyond, the oldest is reset."""
_BACKLOG = 1024
# What a turn of the loop may cost, and what a connection costs.
_TURN_COST = 64
_OPENED_COST = 32
_REFUSED_COST = 1
_REST_SECONDS = 0.001
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EXHAUSTED_SECONDS = 1.0  # as in asyncio's servers
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: no TIME_WAIT for who was refused


class Acceptor:
    """The connections of one listening socket.

    Invariant X5: at most `HELD_MAX` refused connections are held, and a time is set at which the
    oldest is reset.

    Args:
        bound: the socket, bound and non-blocking.
        is_hasty: whether an address connects too often; it counts the connection.
        make: makes the protocol of an admitted connection.
    """

    def __init__(
        self,
        bound: socket.socket,
        is_hasty: Callable[[str], bool],
        make: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._socket = bound
        self._is_hasty = is_hasty
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._is_reading = False
        self._rest: asyncio.TimerHandle | None = None
        self._held: deque[tuple[float, socket.socket]] = deque()  # when to reset, oldest first
        self._release: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Listen, and accept connections from now on.

        Raises:
            OSError: when another process has taken the address meanwhile.
        """
        self._socket.listen(_BACKLOG)
        self._read()

    def _read(self) -> None:
        self._rest = None
        self._is_reading = True
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _rest_for(self, seconds: float) -> None:
        self._stop_reading()
        self._rest = self._loop.call_later(seconds, self._read)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket.fileno())

    def _accept(self) -> None:
        """Accept what waits, up to the cost of one turn."""
        cost = 0
        while cost < _TURN_COST:
            try:
                peer, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    broker_events.CONNECTIONS_NOT_ACCEPTED.log(log, error=error)
                    self._reset_held()
                    self._rest_for(_EXHAUSTED_SECONDS)
                    return
                cost += _REFUSED_COST  # the peer has left already
                continue
            cost += self._take(peer, address[0])
        self._rest_for(_REST_SECONDS)

    def _take(self, peer: socket.socket, ip: str) -> int:
        """Set up or refuse a connection; return what it costs."""
        if self._is_hasty(ip):
            self._hold(peer)
            return _REFUSED_COST
        peer.setblocking(False)
        opening = self._loop.create_task(self._open(peer))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        return _OPENED_COST

    async def _open(self, peer: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, sock=peer)
        except BaseException as error:
            peer.close()
            if not isinstance(error, OSError):  # else the peer has left already
                raise

    def _hold(self, peer: socket.socket) -> None:
        if is_last(peer.fileno()):
            _reset(peer)
            return
        if len(self._held) == HELD_MAX:
            _reset(self._held.popleft()[1])
        self._held.append((self._loop.time() + HELD_SECONDS, peer))
        if self._release is None:
            self._release = self._loop.call_later(HELD_SECONDS, self._let_go)

    def _let_go(self) -> None:
        """Reset the connections that were held long enough."""
        self._release = None
        now = self._loop.time()
        while self._held and self._held[0][0] <= now:
            _reset(self._held.popleft()[1])
        if self._held:
            self._release = self._loop.call_at(self._held[0][0], self._let_go)

    def _reset_held(self) -> None:
        if self._release is not None:
            self._release.cancel()
            self._release = None
        while self._held:
            _reset(self._held.popleft()[1])

    def stop(self) -> None:
        """Accept no more connections, and close the listening socket."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        self._stop_reading()
        self._reset_held()
        self._socket.close()

    async def close(self) -> None:
        """Stop, and wait for the connections that are being set up."""
        self.stop()
        if self._opening:
            await asyncio.wait(self._opening)


def _reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    peer.close()
