"""A listening socket and its connections, for brokers and name servers.

Backpressure: while a peer does not read its answers, the listener does not read its requests.
Bytes that are not a frame close only their connection, with one line in the log.
The memory used for all peers together is limited: incomplete frames, waiting requests, and unread
answers.
"""

import asyncio
import itertools
import resource
import time
from collections import OrderedDict

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import AddressRefused, InvariantBroken
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.held_bytes import HeldBytes
from reliable_mq.runtime.host_names import bound_sockets
from reliable_mq.runtime.server_connection import ConnectionOwner, ServerConnection

log = limited_log(__name__)

IDLE_SECONDS = 120.0  # Apache RocketMQ closes a channel that is silent this long
# Limits for all connections together. Above a limit, the connections that hold the most are closed.
RECEIVED_SIZE_MAX = 256 * 1024 * 1024  # incomplete frames and waiting requests
UNSENT_SIZE_MAX = 256 * 1024 * 1024  # unread answers
# Limits of a loop turn for requests with large answers: their number, and the seconds after which
# none is begun. Seconds count too, because one table may take as much work as many pulls.
_LARGE_IN_TURN = 32
_LARGE_SECONDS = 0.02
# Seconds that a loop turn spends on connections with waiting requests, and on one of these: while
# it is alone, and while others wait.
_TURN_SECONDS = 0.02
_SLICE_SECONDS = 0.02
_SHARED_SLICE_SECONDS = 0.002
_BACKLOG = 1024


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Listener:
    """Accepts connections. `send` answers on a connection by its id.

    Invariant L7: while a connection waits for its next slice, a turn is scheduled.

    Args:
        owner: receives the commands.
        idle_seconds: a connection that is silent in both directions for this long is closed.
    """

    def __init__(self, owner: ConnectionOwner, idle_seconds: float = IDLE_SECONDS) -> None:
        self._owner = owner
        self._idle_seconds = idle_seconds
        self._ids = itertools.count(1)
        self._open: dict[int, ServerConnection] = {}
        self._servers: list[asyncio.Server] = []  # one for each address of the host
        self._idle_check: asyncio.TimerHandle | None = None
        self._received = HeldBytes(RECEIVED_SIZE_MAX, self._received_by)
        self._unsent = HeldBytes(UNSENT_SIZE_MAX, self._unsent_to)
        self._large_left = _LARGE_IN_TURN
        self._large_end = 0.0  # after this time, the turn begins no other large request
        self._waiting: OrderedDict[ServerConnection, None] = OrderedDict()  # with waiting requests
        self._is_turn_due = False
        self.port = 0

    async def bind(self, host: str, port: int) -> None:
        """Bind the address. Connections are accepted only after `serve`.

        With port 0 the system chooses a port; the attribute `port` has it.

        Raises:
            AddressRefused: when the address cannot be bound.
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
                lambda: ServerConnection(self, self._owner),
                sock=bound,
                backlog=_BACKLOG,
                start_serving=False,
            )
            self._servers.append(server)
        self.port = sockets[0].getsockname()[1]

    async def serve(self) -> None:
        """Begin to accept connections. The owner must be ready for commands.

        Raises:
            AddressRefused: when another process has taken the address meanwhile.
        """
        if not self._servers:
            raise InvariantBroken("serve() was called before bind()")
        try:
            for server in self._servers:
                await server.start_serving()
        except OSError as error:
            raise AddressRefused(
                f"port {self.port}: cannot listen here ({_reason(error)}); choose another"
            ) from error
        self._check_idle()

    def send(self, connection_id: int, frames: list[bytes]) -> None:
        """Write frames to a connection. Do nothing when it is closed."""
        connection = self._open.get(connection_id)
        if connection is not None:
            connection.send(frames)

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        silent_since = loop.time() - self._idle_seconds
        for connection in list(self._open.values()):
            connection.close_if_idle(silent_since)
        self._idle_check = loop.call_later(self._idle_seconds / 4, self._check_idle)

    def _received_by(self, connection_id: int) -> int:
        connection = self._open.get(connection_id)
        return connection.received_size if connection else 0

    def _unsent_to(self, connection_id: int) -> int:
        connection = self._open.get(connection_id)
        return connection.unsent_size if connection else 0

    def note_received(self, connection_id: int, size: int) -> None:
        """Note how many bytes of a peer's incomplete frames and waiting requests are in memory."""
        for gone in self._received.note(connection_id, size):
            self._cut_off(gone, "closed, frames that have not come in whole take too much memory")

    def note_unsent(self, connection_id: int, size: int) -> None:
        """Note how many bytes of a peer's unread answers are in memory."""
        for gone in self._unsent.note(connection_id, size):
            self._cut_off(gone, "closed, it does not read its answers")

    def _cut_off(self, connection_id: int, why: str) -> None:
        connection = self._open.get(connection_id)
        if connection is not None:
            connection.cut_off(why)

    def take_large(self) -> bool:
        """Whether this loop turn may begin one more request with a large answer. Counts it."""
        if self._large_left == _LARGE_IN_TURN:
            asyncio.get_running_loop().call_soon(self._refill)
            self._large_end = time.monotonic() + _LARGE_SECONDS
        elif not self._large_left or time.monotonic() >= self._large_end:
            return False
        self._large_left -= 1
        return True

    def _refill(self) -> None:
        self._large_left = _LARGE_IN_TURN

    @property
    def slice_seconds(self) -> float:
        """Seconds that one connection may use in one go."""
        return _SHARED_SLICE_SECONDS if self._waiting else _SLICE_SECONDS

    def go_on_later(self, connection: ServerConnection) -> None:
        """Call the connection's `go_on` in a later loop turn, after the connections that wait.

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
        end = time.monotonic() + _TURN_SECONDS
        for _ in range(len(self._waiting)):
            connection, _none = self._waiting.popitem(last=False)
            try:
                connection.go_on()
            except Exception:
                log.exception("requests of a connection cannot be handled")
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

    def opened(self, connection: ServerConnection) -> int:
        """Record a new connection and return its id."""
        connection_id = next(self._ids)
        self._open[connection_id] = connection
        return connection_id

    def closed(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""
        gone = self._open.pop(connection.id, None)
        if gone is not None:
            self._waiting.pop(gone, None)
            self._received.note(connection.id, 0)
            self._unsent.note(connection.id, 0)
            self._owner.disconnected(connection)

    def close_connection(self, connection_id: int) -> None:
        """Close a connection, if it is still open."""
        connection = self._open.get(connection_id)
        if connection is not None:
            connection.close()

    def stop_reading(self) -> None:
        """Accept no more commands. Answers to earlier commands can still be sent."""
        for server in self._servers:
            server.close()
        for connection in self._open.values():
            connection.stop_reading()

    async def close(self) -> None:
        """Stop listening and close the connections. Answers already written are still sent."""
        if self._idle_check:
            self._idle_check.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self._open.values()):
            connection.close()
        for server in self._servers:
            await server.wait_closed()


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    text = text.rpartition(": ")[2] or text  # asyncio puts its own words before the system's
    return text[:1].lower() + text[1:]  # lower case, as it is used within a sentence


def _allow_many_connections() -> None:
    """Raise this process's limit of open files to the hard limit; shells often start with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
