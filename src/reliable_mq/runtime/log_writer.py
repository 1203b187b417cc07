"""The log writer: writes the batches of a broker's turns, and has them synced.

It receives turns. It reports how far the log is written, and how far it is durable.
The event loop writes a batch to the page cache. `syncs` says where its sync runs.
Batches that arrive during a sync share the next one: a slower disk has more messages per sync.
A thread writes configuration files and does other jobs.
Invariant L5: batches are written in the order of their arrival.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from reliable_mq.broker_core.requests.sends_at_once import PlacedSends
from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.commit_log import CommitLog, LogBatch
from reliable_mq.broker_core.store.disk import (
    Disk,
    DiskFile,
    FileText,
    RowsText,
    is_out_of_descriptors,
    is_out_of_room,
    lack_of,
)
from reliable_mq.errors import StoreError
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.broken import OnBroken, die
from reliable_mq.runtime.gathered_batches import GatheredBatches
from reliable_mq.runtime.job_thread import Jobs, JobThread
from reliable_mq.runtime.syncs import PromptSyncs, Syncs
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

_T = TypeVar("_T")
_ROOM_SECONDS = 0.5  # between two attempts to write to a full disk, or to open a file
_LOG, _TABLES, _SYNC, _JOB = "log", "tables", "sync", "job"  # kinds of work that may wait
_LATELY_SECONDS = 0.1
_MUCH = 128 * 1024  # bytes of a sync; those of 64 clients are less
_ZEROS_MAX = 256 * 1024  # bytes of a sync; one of more costs less than zeros ahead of the log
_SMALL_WRITE = 32 * 1024  # bytes; behind zeros, such a write need not make the system take pages


class LogWriter:
    """Writes turns to a disk.

    Args:
        disk: the store's folder.
        sync_interval: seconds between syncs of the log; 0: each batch is synced before its report.
        on_stored: called on the loop with the end of the log, and whether all of it is durable.
        on_written: called on the loop with each batch when it is written, before it is synced.
        on_saved: called on the loop when all pending configuration files are written.
        on_room: called on the loop. False: the disk is full for the log or a configuration file.
            True: everything that waited for room is written.
        syncs: syncs without a thread; None: the thread does it.
        is_copying: whether much may come at once for which no client waits. Its syncs never run on
            the loop, which takes more meanwhile.
        jobs: runs slow work; None: a thread of the writer's own.
        on_broken: takes an error after which the broker can guarantee nothing; must not return.
    """

    def __init__(
        self,
        disk: Disk,
        sync_interval: float,
        on_stored: Callable[[int, bool], None],
        syncs: Syncs | None = None,
        on_room: Callable[[bool], None] = lambda _has_room: None,
        on_saved: Callable[[], None] = lambda: None,
        *,
        on_written: Callable[[LogBatch], None] | None = None,
        is_copying: bool = False,
        jobs: Jobs | None = None,
        on_broken: OnBroken = die,
    ) -> None:
        self._disk = disk
        self._sync_interval = sync_interval
        self._on_stored = on_stored
        self._loop = asyncio.get_running_loop()
        self._syncs = syncs
        self._is_copying = is_copying
        self._unsynced: dict[DiskFile, None] = {}
        self._zeros_behind = _SMALL_WRITE if sync_interval else _ZEROS_MAX  # see `write_batch`
        self._sync_end = 0  # how far the log was written when the last sync began
        self._on_room = on_room
        self._on_saved = on_saved
        self._on_written = on_written
        self._roomless: deque[LogBatch] = deque()  # in order; later batches queue behind them
        self.gathered: GatheredBatches | None = None  # of a master whose answers wait for slaves
        self._lacking: set[str] = set()  # the kinds of work that wait for room
        self._unsaved: dict[str, FileText] = {}  # configuration files that wait for room
        self._held: deque[Callable[[], bool]] = deque()  # used in the thread only
        self._end = 0  # how far the log was written
        self.is_syncing = False  # then `on_stored` is called
        self._sync_later: asyncio.TimerHandle | None = None
        self._write_later: asyncio.TimerHandle | None = None
        self._files_later: asyncio.TimerHandle | None = None
        self.files_seconds = 0.0  # how long the last write of configuration files took
        self._is_writing_files = False
        self._written_at = -_LATELY_SECONDS  # the log, by the clock of the loop
        self._is_closed = False
        self._settled = asyncio.Event()
        self._on_broken = on_broken
        self._jobs = jobs or JobThread(self._on_broken)

    @property
    def is_waiting_for_room(self) -> bool:
        """Whether an accepted batch is not written yet because the disk is full."""
        return bool(self._roomless)

    def write_turn(self, turn: Turn) -> None:
        """Write the batch and the configuration files of a turn."""
        if turn.files:
            self._is_writing_files = True
            is_busy = self._loop.time() - self._written_at < _LATELY_SECONDS
            for text in turn.files.values():
                if isinstance(text, RowsText):
                    text.is_paced = is_busy
            self._jobs.put(lambda: self._write_files(turn.files))
        if turn.batch is not None:
            self.write(turn.batch)

    def write(self, batch: LogBatch) -> None:
        """Write the batch of a turn."""
        if self._roomless:
            self._roomless.append(batch)
        elif self.gathered is None or not self.gathered.keep(batch):
            self._write(batch)

    def write_alone(self, sends: PlacedSends) -> bool:
        """Write all records of a turn, and report nothing. Their answers wait for no sync.

        False: they must be written as a batch, by `write`. Whatever has failed is told there.
        """
        is_unseen = self._on_written is None and self.gathered is None
        if not (is_unseen and self._sync_interval) or self._roomless:
            return False
        try:
            sends.segment.write(sends.at, (sends.records,))
            if (size := len(sends.records)) <= self._zeros_behind:
                sends.segment.write_ahead(sends.at + size)
        except Exception:  # noqa: BLE001 - see above
            return False
        self._unsynced[sends.segment] = None
        self._end, self._written_at = sends.dispatched.end, self._loop.time()
        self._sync_soon()
        return True

    def _sync_soon(self) -> None:
        if self._sync_later is None:
            self._sync_later = self._loop.call_later(self._sync_interval, self._sync_if_idle)

    def go_on(self, *, at_once: bool = False) -> None:
        """Write what was gathered while an earlier batch was on its way, or all `at_once`."""
        if (gathered := self.gathered) is not None:
            try:
                batch = gathered.take() if at_once else gathered.take_due()
                if batch is not None:
                    self._write(batch)
            except Exception as error:  # noqa: BLE001 - on_broken handles it
                self._on_broken(error)

    def _write(self, batch: LogBatch) -> bool:
        """Write a batch. When the disk is full, keep the batch and return False."""
        try:
            CommitLog.write_batch(batch, self._zeros_behind)
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            if not is_out_of_room(error):
                self._on_broken(error)
            self._note_lack(_LOG, error)
            self._roomless.appendleft(batch)
            self._write_later = self._loop.call_later(_ROOM_SECONDS, self._write_again)
            return False
        self._written(batch)
        return True

    def _write_again(self) -> None:
        """Write the batches that wait for room, at their own offsets in the log."""
        try:
            while self._roomless:
                batch = self._roomless.popleft()
                if not self._write(batch):
                    return
            self._note_room(_LOG)
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)

    def _note_lack(self, of: str, error: Exception | None) -> None:
        """Note that work of a kind waits for room. Without `error`, the cause is logged already."""
        had_room = not self._lacking
        if of not in self._lacking and error is not None:
            lack = lack_of(error)
            broker_events.DISK_FULL.log(log, problem=lack.what, advice=lack.advice, error=error)
        self._lacking.add(of)
        if had_room:
            self._on_room(False)

    def _note_room(self, of: str) -> None:
        if of in self._lacking:
            self._lacking.discard(of)
            if not self._lacking:
                broker_events.DISK_HAS_ROOM.log(log)
                self._on_room(True)

    def _written(self, batch: LogBatch) -> None:
        for write in batch.writes:
            self._unsynced[write.segment] = None
        self._end, self._written_at = batch.end, self._loop.time()
        if self.gathered is not None:
            self.gathered.wrote(batch.end)
        if self._on_written is not None:
            self._on_written(batch)
        if not self._sync_interval:
            if not self.is_syncing:
                self.sync()
            return
        self._sync_soon()
        self._on_stored(batch.end, False)

    def _write_files(self, files: dict[str, FileText]) -> None:
        began = time.monotonic()
        reported, waiting, self._unsaved = self._unsaved, {**self._unsaved, **files}, {}
        for path, text in waiting.items():
            try:
                self._disk.write_text(path, text)
            except OSError as error:
                if not is_out_of_room(error):
                    raise
                if path not in reported:
                    lack = lack_of(error)
                    broker_events.CONFIG_DELAYED.log(
                        log, path=path, problem=lack.what, advice=lack.advice
                    )
                self._unsaved[path] = text
        self.files_seconds = time.monotonic() - began
        if self._unsaved:
            self._loop.call_soon_threadsafe(self._save_later)
        elif waiting:
            self._loop.call_soon_threadsafe(self._saved)

    def _saved(self) -> None:
        self._is_writing_files = False
        self._note_room(_TABLES)
        self._on_saved()

    def _save_later(self) -> None:
        if self._is_closed:
            return
        self._note_lack(_TABLES, None)
        self._files_later = self._loop.call_later(
            _ROOM_SECONDS, self._jobs.put, lambda: self._write_files({})
        )

    def _sync_if_idle(self) -> None:
        self._sync_later = None
        if self.is_syncing:  # a sync longer than the interval; newer batches come next
            self._sync_later = self._loop.call_later(self._sync_interval, self._sync_if_idle)
        elif self._unsynced:
            try:
                self.sync()
            except Exception as error:  # noqa: BLE001 - on_broken handles it
                self._on_broken(error)

    def sync(self) -> None:
        """Begin to sync all batches written so far."""
        files, end = list(self._unsynced), self._end
        self._unsynced.clear()
        self.is_syncing = True
        self._settled.clear()

        def synced() -> None:
            self.is_syncing = False
            try:
                self._on_stored(end, True)
                if self.gathered is not None:
                    self.go_on()
                if self._unsynced and not self._sync_interval and not self.is_syncing:
                    self.sync()
            except Exception as error:  # noqa: BLE001 - on_broken handles it
                self._on_broken(error)
            if not self.is_syncing:
                self._settled.set()

        size, self._sync_end = end - self._sync_end, end
        if not self._sync_interval:
            self._zeros_behind = _ZEROS_MAX if size <= _ZEROS_MAX else 0
        syncs = self._syncs
        if isinstance(syncs, PromptSyncs):
            if self._is_copying and size > _MUCH:
                syncs = syncs.others
            elif self._is_writing_files and syncs.others and syncs.others.start(files, synced):
                return  # if the kernel refuses, the loop syncs: the thread writes the table first
        if syncs is None or not syncs.start(files, synced):
            self._sync_in_thread(files, synced)

    def _sync_in_thread(self, files: Sequence[DiskFile], synced: Callable[[], None]) -> None:
        def job() -> None:
            for file in files:
                file.sync()

        self._do(_SYNC, job, lambda _nothing: synced())

    def _do(self, kind: str, job: Callable[[], _T], done: Callable[[_T], None]) -> None:
        """Run a job in the thread, then call `done` on the loop.

        If the process has no descriptor left for a file, the whole job is repeated later. So a job
        must be repeatable. Jobs of `run` keep their order meanwhile. A failed sync is never
        repeated: after it, the broker can guarantee nothing.
        """

        def attempt() -> bool:
            try:
                result = job()
            except (OSError, StoreError) as error:
                if not is_out_of_descriptors(error):
                    raise
                self._loop.call_soon_threadsafe(do_later, error)
                return False
            self._loop.call_soon_threadsafe(finish, result)
            return True

        def do_later(error: Exception) -> None:
            if not self._is_closed:
                self._note_lack(kind, error)
                self._settled.set()
                self._loop.call_later(_ROOM_SECONDS, do_again)

        def do_again() -> None:
            if not self._is_closed:
                self._jobs.put(self._run_held if kind == _JOB else attempt)

        def finish(result: _T) -> None:
            self._note_room(kind)
            done(result)

        self._jobs.put(partial(self._take_job, attempt) if kind == _JOB else attempt)

    def _take_job(self, attempt: Callable[[], bool]) -> None:
        self._held.append(attempt)
        if len(self._held) == 1:  # no job waits before this one
            self._run_held()

    def _run_held(self) -> None:
        while self._held and self._held[0]():
            self._held.popleft()

    async def run(self, job: Callable[[], _T], done: Callable[[], None] = lambda: None) -> _T:
        """Run a job in the thread and return its result.

        A job that cannot open a file is repeated until it can. Later jobs wait for it. `done` is
        called on the loop after the job, also if the caller was cancelled meanwhile.
        """
        return await self._result_of(_JOB, job, done)

    async def _result_of(
        self, kind: str, job: Callable[[], _T], done: Callable[[], None] = lambda: None
    ) -> _T:
        told: asyncio.Future[_T] = self._loop.create_future()

        def tell(result: _T) -> None:
            done()
            if not told.done():
                told.set_result(result)

        self._do(kind, job, tell)
        return await told

    async def drain(self) -> None:
        """Return when all accepted batches are durable and reported.

        Work that waits for a descriptor is left undone.
        """
        self.go_on(at_once=True)
        while self.is_syncing or self._unsynced:
            if not self.is_syncing:
                self.sync()
            await self._settled.wait()
            if _SYNC in self._lacking:
                break
            self.go_on(at_once=True)  # a turn may have come during the sync
        await self._result_of("nothing", lambda: None)

    def close(self) -> None:
        """End the thread. Call `drain` before.

        Batches that wait for room are never written: by then the store may have another owner.
        """
        self._is_closed = True
        if self.gathered is not None:
            self.gathered.close()
        for later in (self._sync_later, self._write_later, self._files_later):
            if later is not None:
                later.cancel()
        if self._syncs is not None:
            self._syncs.close()
        self._jobs.close()
