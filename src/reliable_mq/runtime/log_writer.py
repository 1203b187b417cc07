"""Writes what a broker's turns want written, and syncs without making the event loop wait.

Receives turns; hands back how far the log was written, and made durable. The loop itself hands a
batch to the system, which keeps it in memory; what takes long, the sync, runs elsewhere: in the
kernel where it offers that, else in a thread. Whatever comes while one sync runs shares the next:
the slower the disk, the more messages share a sync. Configuration files and jobs go to a thread.
Invariant L5: batches are written in the order in which they came.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.disk import Disk, DiskFile
from reliable_mq.runtime.kernel_sync import KernelSync

log = logging.getLogger(__name__)

_Job = Callable[[], None]


class Syncs(Protocol):
    """What syncs files while the loop goes on."""

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        """Begin to sync `files`; `done` is called on the loop. False: it cannot be done here."""
        ...

    def close(self) -> None:
        """Let go of what it has taken from the system."""
        ...


class LogWriter:
    """Writes turns to a disk.

    Args:
        disk: the store's folder.
        sync_interval: seconds between syncs of the log; 0 syncs every batch before it is reported.
        on_stored: called on the loop with the log's end, and whether that is durable.
        syncs: syncs without a thread, None: the thread does it.
    """

    def __init__(
        self,
        disk: Disk,
        sync_interval: float,
        on_stored: Callable[[int, bool], None],
        syncs: Syncs | None = None,
    ) -> None:
        self._disk = disk
        self._sync_interval = sync_interval
        self._on_stored = on_stored
        self._loop = asyncio.get_running_loop()
        self._syncs = syncs
        self._unsynced: dict[DiskFile, None] = {}
        self._end = 0  # how far the log was written
        self._is_syncing = False
        self._sync_later: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="reliable-mq-writer", daemon=True)
        self._thread.start()

    def take(self, turn: Turn) -> None:
        """Write what the turn wants written."""
        if turn.files:
            self._jobs.put(lambda: self._write_files(turn.files))
        batch = turn.batch
        if batch is None:
            return
        try:
            CommitLog.write(batch)
        except Exception as error:  # noqa: BLE001 - told there
            _die(error)
        for write in batch.writes:
            self._unsynced[write.segment] = None
        self._end = batch.end
        if not self._sync_interval:
            if not self._is_syncing:
                self._sync()
            return
        if self._sync_later is None:
            self._sync_later = self._loop.call_later(self._sync_interval, self._sync_if_idle)
        self._on_stored(batch.end, False)

    def _write_files(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            self._disk.write_text(path, text)

    def _sync_if_idle(self) -> None:
        self._sync_later = None
        if not self._is_syncing and self._unsynced:
            self._sync()

    def _sync(self) -> None:
        """Begin to sync what was written up to now."""
        files, end = list(self._unsynced), self._end
        self._unsynced.clear()
        self._is_syncing = True
        self._settled.clear()

        def synced() -> None:
            self._is_syncing = False
            self._on_stored(end, True)
            if self._unsynced and not self._sync_interval and not self._is_syncing:
                self._sync()
            if not self._is_syncing:
                self._settled.set()

        if self._syncs is None or not self._syncs.start(files, synced):
            self._sync_in_thread(files, synced)

    def _sync_in_thread(self, files: Sequence[DiskFile], synced: Callable[[], None]) -> None:
        def job() -> None:
            for file in files:
                file.sync()
            self._loop.call_soon_threadsafe(synced)

        self._jobs.put(job)

    async def run(self, job: _Job) -> None:
        """Run a job in the thread."""
        done = self._loop.create_future()

        def run_and_tell() -> None:
            job()
            self._loop.call_soon_threadsafe(done.set_result, None)

        self._jobs.put(run_and_tell)
        await done

    async def drain(self) -> None:
        """Return when everything that was taken is durable and reported."""
        while self._is_syncing or self._unsynced:
            if not self._is_syncing:
                self._sync()
            await self._settled.wait()
        await self.run(lambda: None)

    def close(self) -> None:
        """End the thread; `drain` first."""
        if self._sync_later is not None:
            self._sync_later.cancel()
        if self._syncs is not None:
            self._syncs.close()
        self._jobs.put(None)
        self._thread.join()

    def _serve(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except Exception as error:  # noqa: BLE001 - told there
            _die(error)


class KernelSyncs:
    """Syncs of real files by the kernel; see `kernel_sync`."""

    def __init__(self, kernel: KernelSync, descriptor_of: Callable[[DiskFile], int | None]) -> None:
        self._kernel = kernel
        self._descriptor_of = descriptor_of

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        """Begin to sync `files`; False: one of them is new, its name must be synced, too."""
        descriptors = [self._descriptor_of(file) for file in files]
        known = [descriptor for descriptor in descriptors if descriptor is not None]
        if len(known) < len(files) or len(known) > self._kernel.depth:
            return False

        def ended(error: int) -> None:
            if error:
                _die(OSError(error, os.strerror(error)))
            done()

        self._kernel.start(known, ended)
        return True

    def close(self) -> None:
        """Let go of the kernel's part."""
        self._kernel.close()


def _die(cause: Exception) -> None:
    """End the process: no acknowledgement can be kept any more; recovery knows what is there."""
    log.critical("the store cannot be written, the broker stops", exc_info=cause)
    logging.shutdown()
    os._exit(1)
