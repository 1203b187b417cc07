"""A listening socket and its connections, for brokers and name servers.

It gives each connection its turn, one after another.
The memory used for all peers together is limited: incomplete frames, waiting requests, and unread
answers.
"""

import asyncio
import itertools
import resource
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import AddressRefused, InvariantBroken
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.acceptor import Acceptor
from reliable_mq.runtime.connection_limits import Admission, ConnectionLimits
from reliable_mq.runtime.connection_roles import (
    ConnectionOwner,
    Decoder,
    HeldConnection,
    plain_decoder,
)
from reliable_mq.runtime.flood_pace import FloodPace
from reliable_mq.runtime.held_bytes import HeldBytes
from reliable_mq.runtime.host_names import bound_sockets, connected_pair, plain_ip, reason_of
from reliable_mq.runtime.server_connection import ServerConnection, TurnShares
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_connection import TlsGate
from reliable_mq.runtime.tls_settings import TlsMode
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.long_frame import AnyFrame

log = limited_log(__name__)

IDLE_SECONDS = 120.0  # Apache RocketMQ closes a channel that is silent this long
FINISH_SECONDS = 1.0
"""So long a stop waits for peers that have not read their last answers."""
_LOOK_SECONDS = 0.002
_CHECKED_AT_ONCE = 250  # connections; each takes 0.4 us
_CHECK_PAUSE_SECONDS = 0.002


class Listener:
    """Accepts connections. `send` answers on a connection by its id.

    Invariant L7: while a connection waits for its next slice, a turn is scheduled. Who has created
    much waits for `FloodPace`.

    Args:
        owner: receives the commands.
        idle_seconds: a connection that is silent in both directions for this long is closed.
        limits: the most connections, and what they may hold together.
        tls: the mode and the certificate; None: all connections are plain.
        turns: of the event loop; None: no other listener is on it.
        make: makes the connection of a peer. None: one that speaks Apache's remoting protocol.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        idle_seconds: float = IDLE_SECONDS,
        *,
        limits: ConnectionLimits | None = None,
        tls: ServerTls | None = None,
        turns: TurnShares | None = None,
        make: "Callable[[Listener], HeldConnection] | None" = None,
    ) -> None:
        self._owner = owner
        self._make = make
        self._idle_seconds = idle_seconds
        self._tls = tls
        limits = limits or ConnectionLimits()
        self._admission = Admission(limits)
        self._ids = itertools.count(1)
        self.connections: dict[int, HeldConnection] = {}  # by id; others only read it
        self._acceptors: list[Acceptor] = []  # one for each address of the host
        self._is_stopped = False
        self._idle_check: asyncio.TimerHandle | None = None
        self._received = HeldBytes(limits.received_size, self._received_by)
        self._unsent = HeldBytes(limits.unsent_size, self._unsent_to)
        self.turns = turns or TurnShares()
        self._waiting: OrderedDict[HeldConnection, None] = OrderedDict()  # with waiting requests
        self._is_turn_due = False
        self.pace = FloodPace(self._let_on)
        self.pace.single_at = lambda: self.turns.single_at
        self.decoder: Decoder = plain_decoder
        self.port = 0
        self.grpc_port = 0  # of this process, for peers that take this port for it
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
        self.ips = [plain_ip(bound.getsockname()[0]) for bound in sockets]

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
        refusal = self._admission.arrive(plain_ip(ip), time.monotonic())
        if refusal:
            broker_events.CONNECTION_TOO_MANY.log(log, client=ip, reason=refusal)
        return bool(refusal)

    def _accepted(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        made = self._make
        connection = made(self) if made is not None else ServerConnection(self, self._owner)
        if self._tls is not None and self._tls.decides_by_first_byte:
            return TlsGate(connection, self._tls)
        return cast("asyncio.Protocol", connection)

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

    async def serve(self, decoder: Decoder = plain_decoder) -> None:
        """Begin to accept connections. The owner must be ready for commands.

        Args:
            decoder: makes what decodes the frames of a connection. Default: sends and pulls have
                no other fields.

        Raises:
            AddressRefused: when another process has taken the address meanwhile.
        """
        if not self._acceptors:
            raise InvariantBroken("serve() was called before bind()")
        self.decoder = decoder
        try:
            for acceptor in self._acceptors:
                acceptor.start()
        except OSError as error:
            raise AddressRefused(
                f"port {self.port}: cannot listen here ({reason_of(error)}); choose another"
            ) from error
        self._check_idle()

    def send(self, connection_id: int, frames: Sequence[AnyFrame]) -> None:
        """Write frames to a connection. Do nothing when it is closed."""
        connection = self.connections.get(connection_id)
        if connection is not None:
            connection.send(frames)

    def wake(self, connection_id: int) -> None:
        """Let the owner have the requests that it has left; see `ConnectionOwner.received`."""
        connection = self.connections.get(connection_id)
        if connection is not None:
            connection.wake()

    def _check_idle(self) -> None:
        self._check_some(iter(list(self.connections.values())))

    def _check_some(self, left: Iterator[HeldConnection]) -> None:
        """Check some connections, and the others a moment later: 10,000 of them take 4 ms."""
        loop = asyncio.get_running_loop()
        silent_since = loop.time() - self._idle_seconds
        some = list(itertools.islice(left, _CHECKED_AT_ONCE))
        for connection in some:
            connection.close_if_idle(silent_since)
        if len(some) == _CHECKED_AT_ONCE:
            self._idle_check = loop.call_later(_CHECK_PAUSE_SECONDS, self._check_some, left)
        else:
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

    @property
    def slice_seconds(self) -> float:
        """Seconds that one connection may use in one go."""
        shares = self.turns.now
        return shares.shared_slice if self._waiting or self.pace.is_on else shares.slice

    def handle_later(self, connection: HeldConnection) -> None:
        """Call the connection's `handle_waiting` in a later turn, after those that wait.

        So a peer that always sends more cannot use up every turn.
        """
        if self.pace.is_on and self.pace.takes(connection):
            return
        self._waiting[connection] = None
        self._schedule_turn()

    def note_created(self, connection_id: int, before: int) -> None:
        """Note what a long request has created; `before` is what `pace.created` returned before."""
        if (connection := self.connections.get(connection_id)) is not None:
            self._note_created(connection, before)

    def _note_created(self, connection: HeldConnection, before: int) -> bool:
        """Return whether a connection has created much, and waits: somebody waits for a send."""
        new = self.pace.created() - before
        if new <= 0:
            return False
        if not self.turns.is_short:
            self.pace.begin_anew()  # what was created while nobody waited does not count
            return False
        self.pace.note(connection, new)
        return self.pace.hold(self._waiting)

    def _let_on(self, connections: Sequence[HeldConnection]) -> None:
        self._waiting.update(dict.fromkeys(connections))
        if self._waiting:
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._is_turn_due = False
        end = time.monotonic() + self.turns.now.turn
        for _ in range(len(self._waiting)):
            connection, _none = self._waiting.popitem(last=False)
            created = self.pace.created()
            try:
                connection.handle_waiting()
            except Exception:  # noqa: BLE001 - it is logged
                broker_events.CONNECTION_BROKEN.log(log, traceback_of=True)
                connection.cut_off("closed, its requests cannot be handled")
            if self._note_created(connection, created) or self.turns.is_spent:
                break
            if time.monotonic() >= end:
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

    def opened(self, connection: HeldConnection, ip: str) -> int | None:
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
            self.pace.forget(gone)
            if self.turns.many_from is gone:
                self.turns.many_from = None
            self._received.set_size(connection.id, 0)
            self._unsent.set_size(connection.id, 0)
            self._owner.disconnected(connection)

    def close_connection(self, connection_id: int) -> None:
        """Close a connection, if it is still open."""
        connection = self.connections.get(connection_id)
        if connection is not None:
            connection.close()

    @property
    def _is_answering(self) -> bool:
        return any(each.is_answering for each in self.connections.values())

    def stop_reading(self) -> None:
        """Accept no more commands. Answers to earlier commands can still be sent."""
        self._is_stopped = True
        for acceptor in self._acceptors:
            acceptor.stop()
        for connection in self.connections.values():
            connection.stop_reading()

    async def close(self, *, at_once: bool = False) -> None:
        """Stop listening and close the connections.

        Peers that read get their last answers whole, if it is not to be done at once.
        """
        if self._idle_check:
            self._idle_check.cancel()
        self.pace.close()
        self._is_stopped = True
        for acceptor in self._acceptors:
            await acceptor.close()
        for connection in self.connections.values():
            connection.finish()
        until = time.monotonic() + (0 if at_once else FINISH_SECONDS)
        while time.monotonic() < until and self._is_answering:
            await asyncio.sleep(_LOOK_SECONDS)
        for connection in list(self.connections.values()):
            connection.close()


def _allow_many_connections() -> None:
    """Raise this process's limit of open files to the hard limit; shells often start with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
