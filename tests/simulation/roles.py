"""What makes a machine a master, or its slave: the product's `Replication`, on the world's loop."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from tests.simulation.loop import WorldLoop, broken
from tests.simulation.wires import Wires

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.config_reading import port_for_slaves
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.runtime.broker_role import BrokerRole
from reliable_mq.runtime.listener import Listener
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.registrar import Registrar
from reliable_mq.runtime.replication import Replication
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_settings import TlsSettings

PORT = 10912
ALL = "10.0.0.0/8"  # the addresses of the world


def _never_cut(offset: int) -> None:
    raise AssertionError(f"the log is cut at {offset}, and may have been acknowledged")


class Role(NamedTuple):
    """What a machine is to another one.

    Args:
        properties: the broker's.
        wires: between the two.
        power_loss: how many of its deaths take what is not on the medium.
        on_cut: called before its log is cut at an offset because it differs from its master's.
    """

    properties: Mapping[str, str]
    wires: Wires
    power_loss: float
    on_cut: Callable[[int], None] = _never_cut

    def settle(
        self, disk: Disk, segment_size: int, on_end: Callable[[], None]
    ) -> tuple[BrokerRole, dict[str, str]]:
        """Decide the role of a life, and cut the log where its note says.

        Return the role, and the properties with it.
        """
        settled = BrokerRole()
        properties = settled.settle(disk, self.properties)
        settled.on_end = on_end
        if settled.note.truncate_to >= 0:
            self.on_cut(settled.note.truncate_to)
        settled.prepare(disk, segment_size)
        return settled, {**properties, **port_for_slaves(properties, PORT - 1)}

    def bound(
        self,
        config: BrokerConfig,
        send: Callable[[list[Answer]], None],
        run_turn: Callable[[], None],
        role: BrokerRole,
    ) -> "Replicating":
        """Return the replication of one life, before anything goes in or out."""
        whole = Replication(send, run_turn, ServerTls(TlsSettings()), role)
        _finish(whole.bind(config, "10.0.0.1", cast("Listener", _NoOtherPort())))
        return Replicating(whole, [])


class Replicating(NamedTuple):
    """The replication of one life."""

    whole: Replication
    works: list["asyncio.Task[Any]"]

    async def begin(
        self,
        loop: WorldLoop,
        core: BrokerCore,
        writer: LogWriter,
        send: Callable[[list[Answer]], None],
        open_doors: Callable[[], None],
    ) -> None:
        """Begin to replicate and to serve, in the order in which `BrokerServer` does it.

        Raises:
            FormerMaster: when another broker is the master.
        """
        config = core.state.config
        registrar = cast("Registrar", _NoRegistrar())
        if not config.is_slave:
            registrar = Registrar(core.state, config.name_servers.split(";"), send, broken)
        await self.whole.check(core, registrar)
        await self.whole.serve(core)
        open_doors()
        await registrar.register()
        self.works.extend(map(loop.carry_out, self.whole.works(core, writer, registrar)))

    async def cancel(self) -> None:
        """End the work, as a broker does that stops."""
        for work in self.works:
            work.cancel()
        await asyncio.gather(*self.works, return_exceptions=True)


class _NoRegistrar:
    """Knows where the master is, as if a name server had told it."""

    master = "10.0.0.1:10911"
    master_ha = f"10.0.0.1:{PORT}"

    async def register(self) -> None:
        """Do nothing: nobody asks for slaves."""


class _NoOtherPort:
    """Takes no further port: Apache's slaves ask there, and none are in this world."""

    async def bind_also(self, _host: str, _port: int) -> None:
        pass


def _finish(work: Any) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits, and nobody lets it go on")
