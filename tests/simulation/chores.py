"""What a broker does from time to time beside its requests, in one of its lives."""

from collections.abc import Callable, Coroutine
from typing import Any

from tests.broker_core.cleaning import begin_cleaning
from tests.simulation.model import Model
from tests.simulation.unjudged import Unjudged
from tests.simulation.watched_disk import WatchedDisk
from tests.simulation.world import World

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.watched_time import ClockReading

_USED_MAX = 0.85  # above it files of the log go however young they are


class Chores:
    """Does what `runtime.broker_chores.BrokerChores` does, one event at a time.

    Args:
        world: the clock.
        model: judges what expires.
        disk: how full it is.
        core: the broker.
        writer: does what is slow.
        carry_out: runs a coroutine.
    """

    def __init__(
        self,
        world: World,
        model: Model | Unjudged,
        disk: WatchedDisk,
        core: BrokerCore,
        writer: LogWriter,
        carry_out: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        self._world, self._model, self._disk = world, model, disk
        self._core, self._writer, self._carry_out = core, writer, carry_out
        self._is_cleaning = False

    def checkpoint(self) -> None:
        """Begin a checkpoint of the store."""
        self._carry_out(self._writer.run(self._core.state.store.begin_checkpoint()))

    def checkpoint_timers(self) -> None:
        """Begin a checkpoint of the timers."""
        work = self._core.begin_timer_checkpoint(self._world.now_ms)
        if work:
            self._carry_out(self._writer.run(work))

    def clean(self) -> None:
        """Begin to remove what has expired."""
        if not self._is_cleaning:
            self._is_cleaning = True
            self._carry_out(self._clean_once())

    async def _clean_once(self) -> None:
        core, world = self._core, self._world
        found = await self._writer.run(core.housekeeping.survey_job())
        reading = ClockReading(world.now_ms / 1000, world.time_ms / 1000, self._disk.boot_id)
        work = begin_cleaning(core, found, reading)
        self._model.expired(core.state.store.log.start, may_go=found.used > _USED_MAX)
        if work:
            await self._writer.run(work)
        self._is_cleaning = False
