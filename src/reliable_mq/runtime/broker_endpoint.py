"""The gRPC endpoint of a broker: in its process, and beside its own port.

The broker of the process is asked directly. Its name server is asked over a private connection,
and everybody else by the remoting protocol: a cluster may have more brokers.
"""

from collections.abc import Awaitable
from functools import partial

from reliable_mq.access.users import User
from reliable_mq.gateway.asyncio_gateway import Gateway
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.fresh_context import context_of_client
from reliable_mq.runtime.grpc_direct import DirectBroker
from reliable_mq.runtime.grpc_roster import BrokerRoster
from reliable_mq.runtime.grpc_server import GrpcServer
from reliable_mq.runtime.grpc_upstream import GrpcUpstream
from reliable_mq.runtime.grpc_users import signer_of, users_of_guard
from reliable_mq.runtime.loop_figures import LoopFigures
from reliable_mq.runtime.self_signed import endpoint_tls
from reliable_mq.wire.addresses import address_of
from reliable_mq.wire.command import Command


class BrokerEndpoint:
    """The endpoint of one broker.

    Args:
        server: the broker; it has started.
        options: of the broker.
        port: 0: a free one.
    """

    def __init__(self, server: BrokerServer, options: BrokerOptions, port: int) -> None:
        self._host, self._port, tls = options.host, port, options.tls
        ip = options.properties.get("brokerIP1", options.host)
        self._own = address_of(ip, server.listener.port)
        self._guard = guard = server.guard
        self._direct = DirectBroker(server, self._requested_here, self._own_user, self._own)
        own = server.name_server
        self._listeners = [server.listener] if own is None else [server.listener, own.listener]
        self._names = GrpcUpstream(dial=own.private_socket) if own is not None else None
        inner = guard.own_user() if guard is not None else None
        self._others = GrpcUpstream(inner, context_of_client(tls))
        self._others.on_request = self._requested
        self._name_servers = server.name_server_address.split(";")
        roster = BrokerRoster(server.guests, self._direct.number)
        self._gateway = Gateway(self._ask, self._name_servers, f"{self._own}@grpc", roster)
        self._tls, self._has_certificate = endpoint_tls(tls), tls.is_serving
        find = users_of_guard(guard) if guard is not None else None
        self._grpc = GrpcServer(
            self._gateway,
            tls=self._tls,
            limits=server.listener.limits,
            authenticate=partial(signer_of, find=find) if find is not None else None,
            on_refused=guard.note_refused if guard is not None else None,
            teller=self._direct if guard is None else None,
            turns=server.listener.turns,
        )

    @property
    def address(self) -> str:
        """The address for clients, "host:port"."""
        return self._grpc.address

    def _ask(self, address: str, command: Command, timeout: float) -> Awaitable[Command]:
        if address == self._own:
            return self._direct.ask(address, command, timeout)
        if self._names is not None and address in self._name_servers:
            return self._names.ask(address, command, timeout)
        return self._others.ask(address, command, timeout)

    def _own_user(self) -> User | None:
        return self._guard.own_user() if self._guard is not None else None

    def _requested(self, address: str, command: Command) -> Command | None:
        return self._gateway.asked(address, command)

    def _requested_here(self, _address: str, command: Command) -> Command | None:
        return self._gateway.asked(self._own, command, self._direct.answer)

    async def start(self) -> None:
        """Listen, and answer calls.

        Raises:
            AddressRefused: when the port is taken.
        """
        await self._grpc.bind(self._host, self._port)
        for listener in self._listeners:
            listener.grpc_port = self._grpc.listener.port
        if self._has_certificate:
            self._tls.watch()
        await self._grpc.serve()

    def measure(self) -> list[LoopFigures]:
        """Note figures for metrics; see `GrpcServer.measure`."""
        return self._grpc.measure()

    async def close(self) -> None:
        """Stop; the broker must still run."""
        self._tls.close()
        await self._grpc.close()
        self._direct.close()
        if self._names is not None:
            await self._names.close()
        await self._others.close()
