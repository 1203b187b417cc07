"""The chores of a broker: what its event loop begins at intervals, and a thread does.

They receive the core and the log writer. Each runs for ever; the broker cancels them at its end.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.broker_core.store.marks import StoreMark
from reliable_mq.errors import StoreError
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.lease_clock import ticks_clock, ticks_run
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.server_connection import TurnShares, now_ms
from reliable_mq.telemetry import broker_events
from reliable_mq.watched_time import ClockReading

log = limited_log(__name__)

_CHECKPOINT_SECONDS = 10.0
_CHECKPOINT_STEP_SECONDS = 0.5
_UNNOTED_MAX = 256 * 1024 * 1024  # bytes of the log; a start needs a second or two to read them
_SYNCED_AT_ONCE = 16  # files of queues, one by one
_SYNCED_TOGETHER = 64  # written back together first: less than half the work
_TOGETHER_SECONDS = 0.25  # if it takes longer, much of others is written back, too
_MADE_AT_ONCE = 16  # files of new queues, in the thread: 0.5 ms each
_WRITTEN_AT_ONCE = 4
_COUNT_SECONDS = 0.005  # between two slices of the statistics
_INDEX_SECONDS = 0.02
_INDEX_PAUSE_SECONDS = 0.001


class BrokerChores:
    """The chores of one broker.

    Args:
        core: says what is due.
        log_writer: its thread does what may block.
        schedule_turn: has a turn run soon; it receives the time.
        turns: whether somebody sends single requests.

    Attributes:
        is_idle: whether nothing has come since the last look; the server sets it to False.
    """

    def __init__(
        self,
        core: BrokerCore,
        log_writer: LogWriter,
        schedule_turn: Callable[[int], None],
        turns: TurnShares,
    ) -> None:
        self._core = core
        self._log_writer = log_writer
        self._schedule_turn, self._turns = schedule_turn, turns
        self.is_idle = True
        self._flushing = asyncio.Lock()  # two at once would take twice the time of a turn

    def forever(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return all chores, to be run beside each other."""
        return (
            self.index_forever(),
            self.checkpoint_forever(),
            self.clean_forever(),
            self.checkpoint_timers_forever(),
        )

    async def index_forever(self) -> None:
        """Update the index in small slices; under load it falls behind, but not far."""
        pause = _INDEX_SECONDS
        while True:
            self.is_idle = True
            await asyncio.sleep(pause)
            pause = _INDEX_SECONDS
            is_wanted = self._core.is_index_wanted
            if is_wanted or self.is_idle:
                if self._core.index_some(now_ms(), is_short=self._turns.is_short):
                    pause = 0 if is_wanted else _INDEX_PAUSE_SECONDS
                if is_wanted:  # perhaps a query that waited is answered
                    self._schedule_turn(now_ms())

    async def rest(self, seconds: float) -> None:
        """Return after a time. Meanwhile, count what many topics got, in short slices."""
        statistics = self._core.state.statistics
        while statistics.is_under_way and seconds > _COUNT_SECONDS:
            await asyncio.sleep(_COUNT_SECONDS)
            seconds -= _COUNT_SECONDS
            statistics.run_some()
        await asyncio.sleep(seconds)

    async def clean_forever(self) -> None:
        """Check the disk, and remove files that are too old."""
        housekeeping, ticks, run = self._core.housekeeping, ticks_clock(), ticks_run()
        while True:
            found = await self._log_writer.run(housekeeping.survey_job())
            if housekeeping.look(found, ClockReading(time.time(), ticks(), run)):
                mark = await self._flush_queues()
                await self._log_writer.run(housekeeping.removal(mark))
            await asyncio.sleep(self._core.state.config.clean_interval_ms / 1000)

    async def checkpoint_forever(self) -> None:
        """Write a checkpoint: after a kill, a start reads only the log behind the checkpoint."""
        seconds = 0.0
        while True:
            await asyncio.sleep(_CHECKPOINT_STEP_SECONDS)
            seconds += _CHECKPOINT_STEP_SECONDS
            if seconds < _CHECKPOINT_SECONDS and self._core.state.store.unnoted_size < _UNNOTED_MAX:
                continue
            seconds = 0.0
            mark = await self._flush_queues()
            await self._log_writer.run(self._core.state.store.begin_checkpoint(mark))

    async def _flush_queues(self) -> StoreMark:
        """Write and sync the queues that wait now, a few at a time, so that no request waits long.

        Return the mark for a checkpoint. Others grow meanwhile, and wait for the next one.
        Between two jobs the thread writes other files, for example that of a new topic. What was
        written is synced soon: else one sync would make the log wait for all queues.
        """
        store = self._core.state.store
        async with self._flushing:
            mark = store.mark()
            at_once = _SYNCED_TOGETHER
            for begin in range(0, mark.waiting, _SYNCED_TOGETHER):
                await self._write_queues(min(_SYNCED_TOGETHER, mark.waiting - begin))
                while store.upkeep.unsynced >= at_once:
                    job = store.begin_queue_sync(at_once)
                    if await self._log_writer.run(partial(_seconds_of, job)) > _TOGETHER_SECONDS:
                        at_once = _SYNCED_AT_ONCE
            for _ in range(store.upkeep.unsynced // _SYNCED_AT_ONCE):
                await self._log_writer.run(store.begin_queue_sync(_SYNCED_AT_ONCE))
            return mark

    async def _write_queues(self, count: int) -> None:
        """Write the `count` queues that have waited longest; the thread makes new files."""
        upkeep = self._core.state.store.upkeep
        while count > 0:
            batch = min(count, _MADE_AT_ONCE)
            if (new := upkeep.begin_making(batch)) is not None:
                await self._log_writer.run(new.make, partial(upkeep.end_making, new))
            for written in range(0, batch, _WRITTEN_AT_ONCE):
                upkeep.flush_some(min(_WRITTEN_AT_ONCE, batch - written))
                await asyncio.sleep(0)
            count -= batch

    async def checkpoint_timers_forever(self) -> None:
        while True:
            await asyncio.sleep(self._core.state.config.timer_interval_ms / 1000)
            work = self._core.begin_timer_checkpoint(now_ms())
            if work:
                await self._log_writer.run(work)


def _seconds_of(job: Callable[[], None]) -> float:
    """Do a job, and return how long it took."""
    began = time.monotonic()
    job()
    return time.monotonic() - began


def close_core(core: BrokerCore) -> None:
    """Save everything and close the store. Without room, the next start recovers."""
    try:
        core.close(now_ms())
    except (OSError, StoreError) as error:
        if not is_out_of_room(error):
            raise
        broker_events.BROKER_NOT_SAVED.log(log, error=error)
