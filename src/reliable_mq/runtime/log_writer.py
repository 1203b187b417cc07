"""The thread that writes and syncs for a broker.

Receives turns; hands back how far the log was written. Whatever has come while one round of writing
and syncing ran makes the next round: the slower the disk, the more messages share a sync.
Invariant L5: batches are written in the order in which they came.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.commit_log import Batch, CommitLog
from reliable_mq.broker_core.store.disk import Disk

log = logging.getLogger(__name__)

_Job = Callable[[], None]


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
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[Turn | _Job | None] = SimpleQueue()
        self._unsynced: list[Batch] = []
        self._synced_at = 0.0
        self._thread = threading.Thread(target=self._serve, name="reliable-mq-writer", daemon=True)
        self._thread.start()

    def take(self, turn: Turn) -> None:
        """Write what the turn wants written, with the next round."""
        if turn.batch or turn.files:
            self._work.put(turn)

    async def run(self, job: _Job) -> None:
        """Run a job in the thread, between rounds."""
        done = self._loop.create_future()

        def run_and_tell() -> None:
            job()
            self._loop.call_soon_threadsafe(done.set_result, None)

        self._work.put(run_and_tell)
        await done

    async def drain(self) -> None:
        """Return when everything that was taken is durable and reported."""
        await self.run(self._sync)
        await asyncio.sleep(0)

    def close(self) -> None:
        """End the thread; `drain` first."""
        self._work.put(None)
        self._thread.join()

    def _serve(self) -> None:
        try:
            while (work := self._next_round()) is not None:
                self._do(work)
        except Exception:
            log.critical("the store cannot be written, the broker stops", exc_info=True)
            logging.shutdown()
            os._exit(1)  # no acknowledgement can be kept any more; recovery knows what is there

    def _next_round(self) -> list[Turn | _Job] | None:
        """Wait for work and return all that is there; None at the end."""
        wait = self._sync_interval if self._unsynced else None
        work: list[Turn | _Job] = []
        try:
            item = self._work.get(timeout=wait)
            while item is not None:
                work.append(item)
                item = self._work.get_nowait()
        except Empty:
            return work
        if work:
            self._work.put(None)  # the end, found behind work: come back to it
        return work or None

    def _do(self, work: list[Turn | _Job]) -> None:
        turns = [item for item in work if isinstance(item, Turn)]
        batches = [turn.batch for turn in turns if turn.batch]
        for batch in batches:
            CommitLog.write(batch)
        self._unsynced += batches
        is_durable = time.monotonic() - self._synced_at >= self._sync_interval
        if is_durable:
            self._sync()
        if batches:
            self._loop.call_soon_threadsafe(self._on_stored, batches[-1].end, is_durable)
        for turn in turns:
            for path, text in turn.files.items():
                self._disk.write_text(path, text)
        for item in work:
            if not isinstance(item, Turn):
                item()

    def _sync(self) -> None:
        for segment in dict.fromkeys(w.segment for b in self._unsynced for w in b.writes):
            segment.sync()
        self._unsynced.clear()
        self._synced_at = time.monotonic()
