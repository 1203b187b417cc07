"""The thread that writes and syncs for a broker.

Receives turns; hands back how far the log was written. While one round of writing and syncing
runs, the turns that come gather into the next: the slower the disk, the more messages share a sync.
Invariant L5: batches are written in the order in which they came, one round at a time.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.commit_log import Batch, CommitLog
from reliable_mq.broker_core.store.disk import Disk

log = logging.getLogger(__name__)


class LogWriter:
    """Writes turns to a disk, off the event loop.

    Args:
        disk: the store's folder.
        sync_interval: seconds between syncs of the log; 0 syncs every round before it is reported.
        on_stored: called on the loop with the log's end, and whether that is durable.
    """

    def __init__(
        self, disk: Disk, sync_interval: float, on_stored: Callable[[int, bool], None]
    ) -> None:
        self._disk = disk
        self._sync_interval = sync_interval
        self._on_stored = on_stored
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reliable-mq-writer")
        self._round: asyncio.Future[bool] | None = None
        self._batches: list[Batch] = []
        self._files: dict[str, str] = {}
        self._unsynced: list[Batch] = []
        self._synced_at = 0.0

    def take(self, turn: Turn) -> None:
        """Write what the turn wants written, now or after the round that runs."""
        if turn.batch:
            self._batches.append(turn.batch)
        if turn.files:
            self._files.update(turn.files)
        if self._round is None and (self._batches or self._files or self._is_sync_due()):
            self._begin_round()

    def _is_sync_due(self) -> bool:
        return bool(self._unsynced) and time.monotonic() - self._synced_at >= self._sync_interval

    def _begin_round(self) -> None:
        batches, self._batches = self._batches, []
        files, self._files = self._files, {}
        loop = asyncio.get_running_loop()
        self._round = loop.run_in_executor(self._thread, self._write, batches, files)
        self._round.add_done_callback(lambda done: self._end_round(done, batches))

    def _write(self, batches: list[Batch], files: Mapping[str, str]) -> bool:
        """Write a round, in the thread; return whether it is durable."""
        for batch in batches:
            CommitLog.write(batch)
        self._unsynced += batches
        is_durable = not self._sync_interval or self._is_sync_due()
        if is_durable:
            for segment in dict.fromkeys(w.segment for b in self._unsynced for w in b.writes):
                segment.sync()
            self._unsynced.clear()
            self._synced_at = time.monotonic()
        for path, text in files.items():
            self._disk.write_text(path, text)
        return is_durable

    def _end_round(self, done: asyncio.Future[bool], batches: list[Batch]) -> None:
        self._round = None
        error = done.exception()
        if error is not None:
            log.critical("the store cannot be written, the broker stops: %s", error)
            logging.shutdown()
            os._exit(1)  # no acknowledgement can be kept any more; recovery knows what is there
        if batches:
            self._on_stored(batches[-1].end, done.result())
        if self._round is None and (self._batches or self._files):
            self._begin_round()

    async def run(self, job: Callable[[], None]) -> None:
        """Run a job in the thread, between rounds."""
        await asyncio.get_running_loop().run_in_executor(self._thread, job)

    async def drain(self) -> None:
        """Return when everything that was taken is written and reported."""
        while self._round is not None:
            await asyncio.wait([self._round])
            await asyncio.sleep(0)

    def close(self) -> None:
        """End the thread; `drain` first."""
        self._thread.shutdown()
