"""What makes a machine a master, or its slave: the product's `Replication`, on the world's loop."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from tests.simulation.loop import WorldLoop
from tests.simulation.wires import Wires

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.config import BrokerConfig
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


class Role(NamedTuple):
    """What a machine is to another one.

    Args:
        properties: the broker's.
        wires: between the two.
        power_loss: how many of its deaths take what is not on the medium.
    """

    properties: Mapping[str, str]
    wires: Wires
    power_loss: float

    def settle(self, disk: Disk, config: BrokerConfig, on_end: Callable[[], None]) -> BrokerRole:
        """Decide the role of a life, and cut the log where its note says."""
        settled = BrokerRole()
        settled.settle(disk, self.properties)
        settled.on_end = on_end
        settled.prepare(disk, config.segment_size)
        return settled

    def begin(
        self,
        loop: WorldLoop,
        parts: tuple[BrokerConfig, BrokerCore, LogWriter],
        send: Callable[[list[Answer]], None],
        run_turn: Callable[[], None],
        role: BrokerRole,
    ) -> "Replicating":
        """Let one life of the machine replicate."""
        config, core, writer = parts
        whole = Replication(send, run_turn, ServerTls(TlsSettings()), role)
        _finish(whole.bind(config, "10.0.0.1", cast("Listener", _NoOtherPort())))
        _finish(whole.serve(core))
        registrar = cast("Registrar", _NoRegistrar())
        works = whole.works(core, writer, registrar)
        return Replicating(whole, [loop.carry_out(work) for work in works])


class Replicating(NamedTuple):
    """The replication of one life."""

    whole: Replication
    works: list["asyncio.Task[Any]"]

    async def cancel(self) -> None:
        """End the work, as a broker does that stops."""
        for work in self.works:
            work.cancel()
        await asyncio.gather(*self.works, return_exceptions=True)


class _NoRegistrar:
    """Knows where the master is, as if a name server had told it."""

    master = "10.0.0.1:10911"
    master_ha = f"10.0.0.1:{PORT}"


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
