"""The store as the broker uses it: append, make durable, dispatch, read.

Receives the fields of a message. Returns its place in log and queue. Does not know topic rules.
Invariant D1: dispatched <= durable (SYNC_FLUSH) or <= written (ASYNC_FLUSH).
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from reliable_mq.broker_core.store import recovery
from reliable_mq.broker_core.store.appender import Appender, AppendResult, StoredMessage
from reliable_mq.broker_core.store.checkpoint import load_checkpoint
from reliable_mq.broker_core.store.commit_log import CommitLog, LogBatch
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.deletions import FOLDER, Deletions
from reliable_mq.broker_core.store.disk import Disk, is_out_of_room, sync_together
from reliable_mq.broker_core.store.evidence import Evidence
from reliable_mq.broker_core.store.lanes import Arrivals, Dispatch, Lane
from reliable_mq.broker_core.store.log_walk import record_at, store_time_ms
from reliable_mq.broker_core.store.marks import Dispatched, StoreMark
from reliable_mq.broker_core.store.message_index import IndexSizes, MessageIndex
from reliable_mq.broker_core.store.progress import StoreProgress, load_progress, save_note
from reliable_mq.broker_core.store.queue_reading import StoredQueueReader
from reliable_mq.broker_core.store.queue_upkeep import QueueUpkeep
from reliable_mq.broker_core.store.retention import Closeable
from reliable_mq.broker_core.store.seen_queues import SeenQueues, seen_queues, unseen_places
from reliable_mq.errors import InvariantBroken, StoreError
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.record import Record, decode_record

log = logging.getLogger(__name__)

ABORT_PATH = "abort"
_WRITTEN_AT_CLOSE = 5_000  # queues; a new one takes a ms or more


class MessageStore:
    """A log, its queues and its checkpoint, in one folder.

    Args:
        disk: the folder.
        segment_size, queue_file_size: bytes of one file of the log, and of a consume queue.
        store_host: this broker's address, packed as in records.
        delays_ms: the delay of each level, in milliseconds.
        process_id: written to the file `abort` while the store is open. Default 0.
        is_sync_flush: whether only durable records are dispatched. Default True.
        index_sizes: sizes of the index files. Default None: no index.

    Raises:
        StoreCorrupt: when a middle segment is missing, or a segment has a wrong size.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        segment_size: int,
        queue_file_size: int,
        store_host: bytes,
        delays_ms: Mapping[int, int],
        process_id: int = 0,
        is_sync_flush: bool = True,
        index_sizes: IndexSizes | None = None,
    ) -> None:
        self._disk = disk
        self._queue_file_size = queue_file_size
        self.units_of_file = queue_file_size // CONSUME_QUEUE_UNIT_SIZE
        self._delays_ms = delays_ms
        self._process_id = process_id
        self._is_sync_flush = is_sync_flush
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}  # others only read it
        self._undispatched: deque[Dispatch] = deque()
        self._dispatched = Dispatched()
        self._stale: list[str] = []  # files of deleted messages, left by a crash
        self._noted = StoreProgress(log_start=-1, log_end=-1)  # the note on the medium
        self.log = CommitLog(disk, segment_size)
        self.appender = Appender(self.log, store_host, delays_ms)
        self.reader = StoredQueueReader(self.log, delays_ms)
        self.upkeep = QueueUpkeep(self.queues, self.appender.lanes)
        self.index = MessageIndex(disk, self.log, index_sizes) if index_sizes else None
        self.deletions = Deletions()
        self.is_copying = False  # whether much of a master's log is still to come

    @property
    def dispatched(self) -> int:
        """The log offset up to which records are in the queues."""
        return self._dispatched.end

    @property
    def last_record(self) -> int:
        """The begin of the last record that is in the queues; without one, the log's start."""
        return max(self._dispatched.last_record, self.log.start)

    def open(self, progress: StoreProgress | None = None) -> None:
        """Recover the content of the folder, and mark it as in use; `progress`: the note, if read.

        Raises:
            StoreCorrupt: when a file has impossible content. Nothing was changed then.
            StoreError: when a newer broker wrote the store. Nothing was changed then.
        """
        progress = progress or load_progress(self._disk)
        checkpoint = load_checkpoint(self._disk)
        was_killed = self._disk.size_of(ABORT_PATH) >= 0
        is_usable = progress and not was_killed and progress.is_newest(checkpoint)
        seen = self._load_queues(progress if is_usable else None)
        evidence = Evidence(
            *(self.log, self.queues, checkpoint, progress, was_killed, self._disk.boot_id),
            *(self._delays_ms, self.deletions, self.units_of_file),
            *((seen.found, seen.others) if seen.found else ()),
        )
        plan = recovery.plan(evidence)
        plan.log_findings(self.log)
        self.log.damage.sought_from = plan.verified_from
        self._mark_use()
        for topic, queue_id in plan.units:
            self._queue(topic, queue_id)
        changed = {
            key: queue
            for key, queue in self.queues.items()
            if key not in seen.found or not plan.keeps(key, queue)
        }
        plan.carry_out(self.log, changed)
        for path in self._stale:
            self._disk.remove(path)
        if self.index:
            self.index.open(
                is_whole=evidence.is_same_boot or not evidence.was_killed,
                was_killed=evidence.was_killed,
                safe_time_ms=checkpoint.index_time_ms,
            )
        self._opened_end = self.log.end
        self.appender.end_of = lambda key: self.bounds(*key)[1]
        last = plan.last_record
        if last:
            time_ms = self.appender.last_time_ms = store_time_ms(last)
            self._dispatched = Dispatched(last.offset + last.size, last.offset, time_ms)
        else:
            self._dispatched = Dispatched(self.log.start)
        self.invariants()
        for queue in changed.values():
            queue.take_growth()
            for file, path in queue.trim(self.log.start):
                file.close()
                self._disk.remove(path)
        if progress and seen.found:
            self.upkeep.extents.begin(progress.queues, changed)
        self.upkeep.note_recovered(changed.values())
        self.checkpoint()

    def _mark_use(self) -> None:
        """Write `abort`: without it the next start would take a crash for a clean stop."""
        try:
            self._disk.write_text(ABORT_PATH, str(self._process_id))
        except OSError as error:
            if not is_out_of_room(error):
                raise
            mark = self._disk.open(ABORT_PATH, 1)  # only its existence counts
            mark.sync()
            mark.close()

    def _load_queues(self, note: StoreProgress | None) -> SeenQueues:
        """Load the queues; return those that the note of a clean stop names; see `seen_queues`."""
        size, seen = self._queue_file_size, SeenQueues({}, {})
        if note is not None:
            seen = seen_queues(self._disk, self.log, note, size, self.deletions)
        for key, extent in seen.found.items():
            self.queues[key] = ConsumeQueue(self._disk, *key, size, seen=extent)
        for place in unseen_places(self._disk, note, seen, self.deletions):
            self._queue(*place)
        return seen

    def invariants(self) -> None:
        """D1; see the head of the module."""
        safe = self.log.durable if self._is_sync_flush else self.log.written
        if self._dispatched.end > safe:
            raise InvariantBroken(f"D1: dispatched {self._dispatched.end}, safe {safe}")

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        key = (topic, queue_id)
        queue = self.queues.get(key)
        if queue is None:
            size = self._queue_file_size
            origin = self.deletions.origin(self._disk, topic, queue_id, size)
            queue = ConsumeQueue(self._disk, topic, queue_id, size, origin)
            self.queues[key] = queue
            self._stale += [f"{FOLDER}/{topic}/{queue_id}/{name}" for name in origin.stale]
        return queue

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None when it never had a message."""
        return self.queues.get((topic, queue_id))

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return a queue's first and next offset; 0 and 0 without any, as Apache's broker does."""
        queue = self.queues.get((topic, queue_id))
        return (queue.first, queue.end) if queue else (0, 0)

    def append(self, message: StoredMessage, now_ms: int) -> AppendResult:
        """Assign a place to a message; see `Appender.append`."""
        return self.appender.append(message, now_ms)

    def take_batch(self) -> LogBatch | None:
        """Return the records that were appended since the last call."""
        taken = self.appender.take_batch()
        if taken is None:
            return None
        batch, dispatch = taken
        self._undispatched.append(dispatch)
        return batch

    def dispatch_up_to(self, end: int, tell: Callable[[Arrivals], None] | None = None) -> None:
        """Put the records of batches that end at or before `end` into their queues, and tell it."""
        undispatched, last = self._undispatched, None
        while undispatched and undispatched[0].end <= end:
            last = undispatched.popleft()
            self._enqueue(last.arrivals)
            if tell is not None:
                for arrivals in last.arrivals:
                    tell(arrivals)
        if last is not None:
            self._dispatched = Dispatched(last.end, last.last_record, last.last_time_ms)
            if last.end > (self.log.durable if self._is_sync_flush else self.log.written):
                self.invariants()

    def _enqueue(self, several: Iterable[Arrivals]) -> None:
        queues, upkeep = self.queues, self.upkeep
        for arrivals in several:
            key = arrivals.topic, arrivals.queue_id
            queue = queues.get(key) or self._queue(*key)
            if queue.append_units(arrivals):
                upkeep.due.append(queue)
            upkeep.grown.add(queue)
            upkeep.gathering[queue] = None

    def dispatch_alone(self, several: Iterable[Arrivals], dispatched: Dispatched) -> None:
        """Put stored records into their queues, while all others are."""
        self._enqueue(several)
        self._dispatched = dispatched

    def read_record(self, commit_log_offset: int) -> Record | None:
        """Return the record at an offset; None without a sound one, or if its topic was deleted."""
        found = record_at(self.log, commit_log_offset)
        record = decode_record(found.buffer) if found else None
        if record and self.deletions.is_deleted(record.topic, record.queue_id, commit_log_offset):
            return None
        return record

    def restart_queue(self, lane: Lane, number: int) -> None:
        """Forget all messages of a queue; it continues at `number`, the begin of a file."""
        key = (lane.topic, lane.queue_id)
        for dispatch in self._undispatched:
            dispatch.arrivals[:] = [a for a in dispatch.arrivals if (a.topic, a.queue_id) != key]
        lane.arrivals = None
        self.upkeep.restart_at(self._queue(*key), number)
        lane.next = number

    def begin_at(self, offset: int) -> None:
        """Let an empty store begin at `offset`, the begin of a segment."""
        self.log.begin_at(offset)
        self._dispatched = Dispatched(offset)

    def delete_topic(self, topic: str) -> bool:
        """Make all messages of a topic unreadable; return whether it ever had a message.

        Its queues keep counting. `deletions` must be saved before the deletion is confirmed.
        """
        for dispatch in self._undispatched:
            dispatch.arrivals[:] = [each for each in dispatch.arrivals if each.topic != topic]
        for _, queue_id in [key for key in self.queues if key[0] == topic]:
            self.appender.lane(topic, queue_id)
        lanes = self.appender.forget(topic)
        for lane in lanes:
            queue = self._queue(topic, lane.queue_id)
            log_end = queue.log_end if queue.end == lane.next else self.log.end
            self.upkeep.restart_at(queue, lane.next)
            lane.next = queue.begin
            self.deletions.note_deleted(topic, lane.queue_id, log_end, queue.begin)
        return bool(lanes)

    def expire(self, count: int) -> list[tuple[Closeable, str]]:
        """Forget the oldest segments; return files that may be closed and removed.

        The new start of the log must be on the medium before that; `begin_checkpoint` writes it.
        Then `upkeep.trim_some` trims the queues.
        """
        gone: list[tuple[Closeable, str]] = [*self.log.take_oldest(count)]
        if gone:
            if self.index:
                gone += self.index.take_expired(self.log.start)
            self.upkeep.trim_all()
        return gone

    @property
    def is_start_noted(self) -> bool:
        """Whether the current start of the log is noted on the medium."""
        return self._noted.log_start >= self.log.start

    @property
    def unnoted_size(self) -> int:
        """Visible bytes of the log since the last checkpoint."""
        return self._dispatched.end - max(self._noted.log_end, self._opened_end)

    def mark(self) -> StoreMark:
        """Return what is dispatched now; see `StoreMark`."""
        return StoreMark(self._dispatched, self.upkeep.unwritten, self.upkeep.lacks)

    def begin_queue_sync(self, count: int) -> Callable[[], None]:
        """Return the job that syncs what was written of `count` queues, in any thread."""
        return partial(sync_together, self._disk, self.upkeep.take_unsynced(count))

    def begin_checkpoint(self, mark: StoreMark | None = None) -> Callable[[], None]:
        """Return the job of a checkpoint of what was marked.

        Without a mark, it is of the current state, and this writes all queues at once.
        The job may run in another thread, between two writes of batches. It syncs log and queues,
        writes the progress note, and creates the next segment in advance.

        Raises, when the job runs:
            StoreError, OSError: when the disk fails. No note is written then, and the store must
                not be used any more: nobody knows whether the units will become durable.
        """
        if mark is None:
            mark = self.mark()
            self.upkeep.flush()
        is_written = mark.lacks == self.upkeep.lacks
        if not is_written:  # a note would claim units that are not in the files
            broker_events.QUEUES_NO_ROOM.log(log)
        unsynced = self.upkeep.take_unsynced(len(self.queues))
        # A full disk must not keep old segments because the newest units have no room.
        marked = self._progress(mark.dispatched) if is_written else self._noted
        progress = marked.with_start(self.log.start)
        before = self._noted
        is_news = (progress.log_start, progress.log_end) != (before.log_start, before.log_end)
        segments = self.log.segments_from(max(before.log_end, self._opened_end))  # see `open`
        index_files = self.index.take_full() if self.index else []

        def work() -> None:
            sync_together(self._disk, (*segments, *unsynced, *index_files))
            try:
                if is_news or unsynced:
                    index_time_ms = index_files[-1].end_time_ms if index_files else 0
                    save_note(self._disk, progress, index_time_ms)
                    self._noted = progress  # a single assignment: the event loop may read it now
                self.log.prepare_segment()
            except (OSError, StoreError) as error:
                if not is_out_of_room(error):
                    raise
                broker_events.CHECKPOINT_NO_ROOM.log(log, error=error)

        return work

    def _progress(self, at: Dispatched) -> StoreProgress:
        return StoreProgress(
            boot_id=self._disk.boot_id,
            is_sync_flush=self._is_sync_flush,
            log_start=self.log.start,
            log_end=at.end,
            last_record=at.last_record,
            last_time_ms=at.time_ms,
            queues=self.upkeep.extents.taken(),
        )

    def index_some(self, now_ms: int, *, is_short: bool = False) -> None:
        """Add the next records to the index; see `MessageIndex.advance`."""
        if self.index is not None:
            self.index.advance(self._dispatched.end, now_ms, is_short=is_short)

    @property
    def index_lag(self) -> int:
        """Visible bytes of the log that are not in the index yet."""
        return 0 if self.index is None else max(0, self._dispatched.end - self.index.indexed)

    @property
    def is_indexed(self) -> bool:
        """Whether every visible record is in the index, or there is no index."""
        return self.index is None or self.index.indexed >= self._dispatched.end

    def checkpoint(self) -> None:
        """Sync log and queues, and write the progress note."""
        self.begin_checkpoint()()

    def close(self) -> None:
        """Write a checkpoint, remove the mark of use, and close the files.

        Without room for it, or with very many new queues, the next start assumes a crash.
        """
        if self.index:
            self.index.close()
        if self.upkeep.unwritten <= _WRITTEN_AT_CLOSE:
            self.checkpoint()
        else:
            broker_events.QUEUES_LEFT_UNWRITTEN.log(log, count=self.upkeep.unwritten)
        if self.is_start_noted and self._noted.log_end == self._dispatched.end:
            self._disk.remove(ABORT_PATH)
        for queue in self.queues.values():
            queue.close()
        self.log.close()
