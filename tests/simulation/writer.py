"""The writer's thread as a sequence of events: between any two of them everything else may happen.

Does what `runtime.log_writer.LogWriter` does, in the same order: all batches that wait are written,
synced when it is time, reported, and then the configuration files and other jobs follow.
"""

from collections.abc import Callable, Iterator

from tests.simulation.world import World

from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.commit_log import Batch, CommitLog
from reliable_mq.testing.memory_disk import MemoryDisk

Job = Callable[[], None]


class Writer:
    """Writes the turns of one life of a broker.

    Args:
        world: the clock.
        disk: the store's folder.
        on_written: told the log's end when the file system has it, and when the medium has it.
        on_stored: told as the core is told, later.
        guard: runs a step unless the machine is dead, and notices when it dies in it.
    """

    def __init__(
        self,
        world: World,
        disk: MemoryDisk,
        on_written: Callable[[int, bool], None],
        on_stored: Callable[[int, bool], None],
        guard: Callable[[Callable[[], None]], None],
    ) -> None:
        self._world = world
        self._disk = disk
        self._on_written = on_written
        self._on_stored = on_stored
        self._guard = guard
        self._work: list[Turn | Job] = []
        self._unsynced: list[Batch] = []
        self._synced_ms = 0.0
        self._steps = self._serve()
        self._is_idle = True
        self._reports: list[tuple[int, bool]] = []

    def take(self, turn: Turn) -> None:
        """Write what the turn wants written, with the next round."""
        if turn.batch or turn.files:
            self.run(turn)

    def run(self, work: Turn | Job) -> None:
        """Do some work with the next round."""
        self._work.append(work)
        if self._is_idle:
            self._is_idle = False
            self._continue()

    def _continue(self) -> None:
        self._world.later(self._world.around(self._world.plan.disk_ms), self._step_guarded)

    def _step_guarded(self) -> None:
        self._guard(self._step)

    def _step(self) -> None:
        next(self._steps)
        if not self._is_idle:
            self._continue()

    def drain(self) -> None:
        """Do all that waits now, sync, and report."""
        while self._work or not self._is_idle:
            self._is_idle = False
            next(self._steps)
            self._report()
        self._sync()
        self._report()

    def _serve(self) -> Iterator[None]:
        while True:
            work, self._work = self._work, []
            yield from self._round(work)
            if not self._work:
                self._is_idle = True
                if self._unsynced:
                    self._world.later(self._world.plan.sync_interval_ms, self._wake)
                yield

    def _wake(self) -> None:
        if self._is_idle and self._unsynced:
            self._is_idle = False
            self._guard(self._step)

    def _round(self, work: list[Turn | Job]) -> Iterator[None]:
        turns = [item for item in work if isinstance(item, Turn)]
        batches = [turn.batch for turn in turns if turn.batch]
        for batch in batches:
            CommitLog.write(batch)
            self._on_written(batch.end, False)
            yield
        self._unsynced += batches
        is_due = self._world.time_ms - self._synced_ms >= self._world.plan.sync_interval_ms
        if is_due and self._unsynced:
            self._sync()
            yield
        if batches:
            self._reports.append((batches[-1].end, is_due))
            self._world.later(0, lambda: self._guard(self._report))
        for turn in turns:
            for path, text in turn.files.items():
                self._disk.write_text(path, text)
                yield
        for item in work:
            if not isinstance(item, Turn):
                item()
                yield

    def _sync(self) -> None:
        for segment in dict.fromkeys(w.segment for b in self._unsynced for w in b.writes):
            segment.sync()
        if self._unsynced:
            self._on_written(self._unsynced[-1].end, True)
        self._unsynced.clear()
        self._synced_ms = self._world.time_ms

    def _report(self) -> None:
        reports, self._reports = self._reports, []
        for end, is_durable in reports:
            self._on_stored(end, is_durable)
