"""The gRPC endpoint over sockets: a listener whose connections speak HTTP/2."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.gateway.asyncio_gateway import Gateway
from reliable_mq.gateway.asyncio_upstream import Teller
from reliable_mq.runtime.connection_limits import ConnectionLimits
from reliable_mq.runtime.grpc_calls import Authenticate, Calls
from reliable_mq.runtime.grpc_connection import GrpcConnection
from reliable_mq.runtime.listener import Listener
from reliable_mq.runtime.loop_figures import LoopFigures, connection_samples
from reliable_mq.runtime.server_connection import TurnShares
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.telemetry.families import Sample
from reliable_mq.wire.addresses import address_of
from reliable_mq.wire.command import Command


class GrpcServer:
    """An endpoint for official clients.

    Args:
        gateway: answers calls.
        tls: the mode and the certificate; the caller closes it. None: all connections are plain.
        limits: of the connections.
        authenticate: returns the user who has signed a call; None: nobody signs.
        on_refused: called when a signature is refused.
        teller: the broker of this process; None: there is none.
        turns: of the event loop; None: no other listener is on it.
    """

    small_answers: frozenset[int] = frozenset()

    def __init__(
        self,
        gateway: Gateway,
        *,
        tls: ServerTls | None = None,
        limits: ConnectionLimits | None = None,
        authenticate: Authenticate | None = None,
        on_refused: Callable[[], None] | None = None,
        teller: Teller | None = None,
        turns: TurnShares | None = None,
    ) -> None:
        self.gateway = gateway
        self._calls = calls = Calls(gateway, authenticate, on_refused, teller)
        self._tls, self._host = tls, ""
        self.listener = Listener(
            self,
            tls=tls,
            limits=limits,
            turns=turns,
            make=lambda listener: GrpcConnection(listener, calls),
        )

    @property
    def address(self) -> str:
        """The address for clients, "host:port"."""
        return address_of(self._host, self.listener.port)

    async def bind(self, host: str, port: int) -> None:
        """Bind the port.

        Raises:
            AddressRefused: when it is taken.
        """
        self._host = host
        await self.listener.bind(host, port)

    async def serve(self) -> None:
        """Answer calls from now on."""
        await self.listener.serve()
        self.gateway.start()

    def measure(self) -> list[LoopFigures]:
        """Note figures for metrics from now on, on the running loop; return them."""
        return [LoopFigures(self._samples, "endpoint")]

    def _samples(self) -> Iterator[Sample]:
        prefix, gateway = "reliable_mq_endpoint_", self.gateway
        sessions = list(gateway.sessions)
        yield Sample(f"{prefix}running_calls", self._calls.running)
        yield Sample(f"{prefix}waiting_receives", gateway.waiting)
        yield Sample(f"{prefix}clients", len(sessions))
        yield Sample(f"{prefix}command_streams", sum(each.is_connected for each in sessions))
        yield Sample(f"{prefix}renewed_messages", sum(len(each.held) for each in sessions))
        for (name, code), count in self._calls.ended.items():
            yield Sample(f"{prefix}calls_total", count, (name, str(code)))
        for outcome in ("done", "failed"):
            yield Sample(f"{prefix}renewals_total", gateway.renewals.get(outcome, 0), (outcome,))
        yield from connection_samples(prefix, self.listener, self._tls)

    async def close(self) -> None:
        """Begin no more calls, give back what clients hold, and stop."""
        self.listener.stop_reading()
        await self.gateway.close()
        await asyncio.sleep(0)
        await self.listener.close()

    def received(self, connection: PeerConnection, commands: Iterable[Command]) -> bool:
        """Take no commands: connections here make calls."""
        del connection, commands
        return False

    def received_known(self, connection: PeerConnection, command: Command) -> bool:
        """Take no command: nothing is recognised here."""
        del connection, command
        return False

    def disconnected(self, connection: PeerConnection) -> None:
        """Do nothing: the streams of a connection have told it."""
