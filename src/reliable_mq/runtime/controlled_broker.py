"""A broker under a controller: one broker after another, on the same store and ports.

When the controller elects another master, the running broker ends and the next one starts with its
new role. The process, and the connection to the controller, stay. If the disk is full then, the
start is tried again: another process would find it full, too.
"""

import asyncio
from functools import partial

import msgspec

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.errors import (
    AddressRefused,
    ConfigurationError,
    FormerMaster,
    ReliableMQError,
    StoreError,
)
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.broken import OnBroken, die, watched
from reliable_mq.runtime.broker_role import BrokerRole, RoleEnd
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.controller_member import ControllerMember
from reliable_mq.runtime.fresh_context import context_of_client
from reliable_mq.runtime.loop_figures import LoopFigures
from reliable_mq.runtime.switched_replication import SwitchedReplication
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

_AGAIN_SECONDS = 0.5  # until a broker that could not start is started again


def is_controlled(options: BrokerOptions) -> bool:
    """Whether a controller decides the role of a broker."""
    return options.properties.get("enableControllerMode", "").strip().lower() == "true"


class ControlledBroker:
    """A broker whose role a controller decides. It is started and closed as `BrokerServer` is.

    Attributes:
        role: why the broker must end, if it must: never for another role.

    Args:
        options: as for `BrokerServer`; the name servers must be elsewhere.
        on_broken: see `BrokerServer`.

    Raises:
        ConfigurationError: when a setting is wrong.
    """

    def __init__(self, options: BrokerOptions, on_broken: OnBroken = die) -> None:
        if not options.name_servers:
            raise ConfigurationError(
                "enableControllerMode=true needs name servers elsewhere (--namesrv): one in this "
                "process would end with each change of the role"
            )
        given = {"brokerIP1": options.host, **_without_role(options)}
        config, _warnings = broker_config(given)
        self._on_broken = on_broken
        self._options = msgspec.structs.replace(options, properties=_without_role(options))
        self._member = ControllerMember(config, context_of_client(options.tls), on_broken)
        self._ended = asyncio.Event()
        self._server: BrokerServer
        self._following: asyncio.Task[None] | None = None
        self._is_running = False
        self.starts = 0  # of brokers, one after another
        self.role = BrokerRole()

    @property
    def address(self) -> str:
        """The broker's address for clients, "host:port"."""
        return self._server.address

    @property
    def name_server_address(self) -> str:
        """The name servers."""
        return self._options.name_servers

    async def start(self) -> None:
        """Start the broker when the controller has said its role; this waits for it.

        Raises: see `BrokerServer.start`.
        """
        self._options.store.mkdir(parents=True, exist_ok=True)
        try:
            await self._start_until_settled()
        except BaseException:
            await self._member.close()
            raise
        port = int(self._server.address.rpartition(":")[2])
        if not self._options.port:
            properties = {"haListenPort": "0", **self._options.properties}
            self._options = msgspec.structs.replace(self._options, port=port, properties=properties)
        self._following = watched(self._follow_forever(), self._on_broken)

    async def _start_until_settled(self) -> None:
        """Start a broker; again when another master was elected meanwhile."""
        while True:
            self._ended.clear()
            make = partial(SwitchedReplication, self._member)
            server = self._server = BrokerServer(self._options, self._on_broken, make)
            server.role.on_end = self._ended.set
            try:
                await server.start()
            except FormerMaster as error:
                broker_events.ROLE_IN_DOUBT.log(log, error=error)
            except (AddressRefused, StoreError) as error:
                is_passing = isinstance(error, AddressRefused) or is_out_of_room(error)
                if not (self.starts and is_passing):
                    raise
                broker_events.NOT_STARTED_AGAIN.log(log, error=error)
            else:
                self.starts += 1
                self._is_running = True
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _follow_forever(self) -> None:
        """Start the next broker whenever one has ended for another role."""
        while True:
            await self._ended.wait()
            ending = self._server.role.ending or RoleEnd()
            if ending.error is not None and not isinstance(ending.error, FormerMaster):
                self.role.end(ending)
                return
            self._is_running = False
            try:
                await self._server.close()
                await self._start_until_settled()
            except ReliableMQError as error:
                self.role.end(RoleEnd(error))
                return

    def measure(self) -> list[LoopFigures]:
        """Note figures for metrics, of the broker that runs now; see `BrokerServer.measure`."""
        return self._server.measure()

    async def close(self) -> None:
        """Stop; the controller elects another master, if there is one."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._is_running:
            await self._server.close()
        await self._member.close()


def _without_role(options: BrokerOptions) -> dict[str, str]:
    """Return the properties of a broker without those that the controller decides."""
    decided = ("brokerRole", "brokerId")
    return {name: text for name, text in options.properties.items() if name not in decided}
