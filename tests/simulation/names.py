"""The name server of the world: the product's, and the way to it and to a promoted broker.

Who is parted from the other machine is parted from it, too.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from tests.simulation.loop import WorldLoop
from tests.simulation.world import World

from reliable_mq.errors import ConnectionLost, RequestTimeout
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command

ADDRESS = "10.0.0.9:9876"
Ask = Callable[[Command], "asyncio.Future[Command | None]"]


class WorldNames:
    """The requests of brokers to the name server, and to each other.

    Attributes:
        brokers: asks a broker, by its address.
        known_ms: when each master was registered first, by its address.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._core = NameServerCore()
        self.brokers: dict[str, Ask] = {}
        self.known_ms: dict[str, float] = {}

    async def call(self, address: str, command: Command, timeout_seconds: float) -> Command:
        """Return the answer.

        Raises:
            Unavailable: when none comes, or none in time.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._answer(address, command)
        except TimeoutError as error:
            raise RequestTimeout("no answer in time") from error

    async def _answer(self, address: str, command: Command) -> Command:
        loop = cast("WorldLoop", asyncio.get_running_loop())
        await self._pass(loop)
        if address == ADDRESS:
            answer: Command | None = self._core.receive(1, command, self._world.now_ms)
            self._note(command, answer)
        elif address in self.brokers:
            answer = await self.brokers[address](command)
        else:
            answer = None
        await self._pass(loop)
        if answer is None:
            raise ConnectionLost("nobody answers there")
        return answer

    async def _pass(self, loop: WorldLoop) -> None:
        """Let the time of one way pass."""
        passed = loop.create_future()

        def end() -> None:
            if not passed.done():
                passed.set_result(None)

        delay_ms = self._world.around(self._world.plan.wire_ms)
        self._world.later(delay_ms, lambda: loop.guard(end))
        await passed
        if loop.wires is None or loop.wires.are_parted:
            raise ConnectionLost("the machines are parted")

    def _note(self, command: Command, answer: Command | None) -> None:
        is_registered = answer is not None and answer.code == ResponseCode.SUCCESS
        if command.code == RequestCode.REGISTER_BROKER and is_registered:
            self.known_ms.setdefault(command.ext_fields["brokerAddr"], self._world.time_ms)

    async def close(self) -> None:
        """Cut nothing: the next life connects again."""
