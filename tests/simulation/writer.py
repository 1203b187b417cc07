"""What writes for a broker, as a sequence of events: between any two everything else may happen.

Does what `runtime.log_writer.LogWriter` does, in the same order: a batch is written in its turn;
one sync at a time covers what was written before it began; configuration files and other jobs
follow one another in a thread.
"""

from collections import deque
from collections.abc import Callable

from tests.simulation.world import World

from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.disk import DiskFile
from reliable_mq.testing.memory_disk import MemoryDisk

Job = Callable[[], None]


class Writer:
    """Writes the turns of one life of a broker.

    Args:
        world: the clock.
        disk: the store's folder.
        on_disk: told the log's end when the file system has it, and when the medium has it.
        on_stored: told what the core is told.
        guard: runs a step unless the machine is dead, and notices when it dies in it.
    """

    def __init__(
        self,
        world: World,
        disk: MemoryDisk,
        on_disk: Callable[[int, bool], None],
        on_stored: Callable[[int, bool], None],
        guard: Callable[[Job], None],
    ) -> None:
        self._world = world
        self._disk = disk
        self._on_disk = on_disk
        self._on_stored = on_stored
        self._guard = guard
        self._is_sync_flush = world.plan.is_sync_flush
        self._unsynced: dict[DiskFile, None] = {}
        self._end = 0
        self._syncing: Job | None = None
        self._sync_is_due = False
        self._jobs: deque[Job] = deque()
        self._is_working = False

    def take(self, turn: Turn) -> None:
        """Write what the turn wants written."""
        if turn.files:
            self.run(lambda: self._write_files(turn.files))
        batch = turn.batch
        if batch is None:
            return
        CommitLog.write(batch)
        self._unsynced.update((write.segment, None) for write in batch.writes)
        self._end = batch.end
        self._on_disk(batch.end, False)
        if self._is_sync_flush:
            if not self._syncing:
                self._sync()
            return
        if not self._sync_is_due:
            self._sync_is_due = True
            self._later(self._world.plan.sync_interval_ms, self._sync_if_idle)
        self._on_stored(batch.end, False)

    def _write_files(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            self._disk.write_text(path, text)

    def _sync_if_idle(self) -> None:
        self._sync_is_due = False
        if not self._syncing and self._unsynced:
            self._sync()

    def _sync(self) -> None:
        """Begin to sync what was written; the medium may have it long before anybody is told."""
        files, end = list(self._unsynced), self._end
        self._unsynced.clear()

        def sync() -> None:
            for file in files:
                file.sync()
            self._on_disk(end, True)

        def synced() -> None:
            self._syncing = None
            self._on_stored(end, True)
            if self._unsynced and not self._syncing and self._is_sync_flush:
                self._sync()

        def all_of_it() -> None:
            sync()
            synced()

        if self._world.random.random() < 0.5:
            self._syncing = synced
            sync()
        else:
            self._syncing = all_of_it
        self._wait_for_sync(self._syncing)

    def _wait_for_sync(self, syncing: Job) -> None:
        def end() -> None:
            if self._syncing is syncing:
                syncing()

        if self._world.random.random() < 0.7:
            self._later(self._world.around(self._world.plan.disk_ms), end)
        else:
            self.run(end)  # behind all that the thread has to do

    def run(self, job: Job) -> None:
        """Do a job in the thread."""
        self._jobs.append(job)
        if not self._is_working:
            self._is_working = True
            self._work_later()

    def _work_later(self) -> None:
        self._later(self._world.around(self._world.plan.disk_ms), self._work)

    def _work(self) -> None:
        if self._jobs:
            self._jobs.popleft()()
        self._is_working = bool(self._jobs)
        if self._is_working:
            self._work_later()

    def _later(self, delay_ms: float, act: Job) -> None:
        self._world.later(delay_ms, lambda: self._guard(act))

    def drain(self) -> None:
        """Do all that waits now, sync and report."""
        while self._jobs or self._syncing or self._unsynced:
            if self._syncing:
                self._syncing()
            elif self._unsynced:
                self._sync()
            else:
                self._jobs.popleft()()
