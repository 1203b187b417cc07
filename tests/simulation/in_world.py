"""What the product's replication meets outside: the world's sockets, clock and links, no others."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import cast
from unittest import mock

from tests.simulation.client import Caller
from tests.simulation.loop import WorldLoop
from tests.simulation.machine import Machine
from tests.simulation.names import WorldNames
from tests.simulation.roles import PORT
from tests.simulation.wires import Make, Wires
from tests.simulation.world import World

from reliable_mq.errors import ConnectionLost, RequestTimeout
from reliable_mq.runtime import fence, ha_master, ha_slave, registrar, replication, table_follower
from reliable_mq.wire.command import Command

_SECONDS = {
    (ha_slave, "RETRY_SECONDS"): 0.3,
    (ha_slave, "SILENT_SECONDS"): 2.0,
    (ha_slave, "REPORT_SECONDS"): 0.5,
    (ha_master, "HEARTBEAT_SECONDS"): 0.5,
    (ha_master, "SILENT_SECONDS"): 2.0,
    (ha_master, "_TEND_SECONDS"): 0.2,
    (table_follower, "TABLES_SECONDS"): 0.5,
    (fence, "LOOK_SECONDS"): 0.5,
}


class WorldLinks:
    """A slave's requests to its master."""

    def __init__(self, world: World, master: Machine, wires: Wires) -> None:
        self._wires = wires
        self._caller = Caller(world, master)
        self._caller.is_broker = True

    def ask(self, command: Command) -> "asyncio.Future[Command | None]":
        """Return what gets the answer; None: there is none."""
        heard: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()

        def hear(answer: Command | None) -> None:
            if not (heard.done() or self._wires.are_parted):
                heard.set_result(answer)

        if self._wires.are_parted or not self._caller.ask(command, hear):
            heard.set_result(None)
        return heard

    async def call(self, _address: str, command: Command, timeout_seconds: float) -> Command:
        """Return the answer.

        Raises:
            Unavailable: when none has come.
        """
        heard = self.ask(command)
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await heard
        except TimeoutError as error:
            raise RequestTimeout("no answer in time") from error
        if answer is None:
            raise ConnectionLost("the link broke")
        return answer

    async def close(self) -> None:
        """Cut nothing: the next life connects again."""


class _FakeSocket:
    """What is bound to a port, as far as the product looks at it."""

    @staticmethod
    def getsockname() -> tuple[str, int]:
        return "10.0.0.1", PORT


class _Acceptor:
    """Takes connections of the wires, as many as come."""

    def __init__(self, _bound: object, _is_hasty: object, make: Make) -> None:
        self._make = make
        self._loop = cast("WorldLoop", asyncio.get_running_loop())

    def start(self) -> None:
        """Take connections from now on."""
        assert self._loop.wires is not None
        self._loop.wires.listen(self._loop, self._make)

    async def close(self) -> None:
        """Take no more."""
        assert self._loop.wires is not None
        self._loop.wires.close(self._loop)


async def _bound_sockets(_host: str, _port: int) -> list[_FakeSocket]:
    return [_FakeSocket()]


@contextmanager
def in_world(world: World, links: Callable[[], WorldLinks], names: WorldNames) -> Iterator[None]:
    """Let the product live in the world: by its clock, with its sockets, in a hurry."""

    def links_of(*_of: object) -> WorldLinks:
        return links()

    def names_of(*_of: object, **_options: object) -> WorldNames:
        return names

    with ExitStack() as stack:
        for name, read in (
            ("monotonic", lambda: world.time_ms / 1000),
            ("time", lambda: world.now_ms / 1000),
            ("time_ns", lambda: world.now_ms * 1_000_000),
        ):
            stack.enter_context(mock.patch.object(time, name, read))
        for (module, name), seconds in _SECONDS.items():
            stack.enter_context(mock.patch.object(module, name, seconds))
        stack.enter_context(mock.patch.object(ha_master, "bound_sockets", _bound_sockets))
        stack.enter_context(mock.patch.object(ha_master, "Acceptor", _Acceptor))
        stack.enter_context(mock.patch.object(replication, "asking_links", links_of))
        stack.enter_context(mock.patch.object(fence, "asking_links", names_of))
        stack.enter_context(mock.patch.object(registrar, "Links", names_of))
        yield
