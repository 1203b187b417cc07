"""The store as the broker sees it: append, make durable, dispatch, read.

Receives fields of a message; hands on its place in log and queue; refuses to know topics' rules.
Invariant D1: dispatched <= durable (SYNC_FLUSH) or <= written (ASYNC_FLUSH).
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from reliable_mq.broker_core.dispatch import DispatchEntry, is_queued, queue_tags_code
from reliable_mq.broker_core.store import consume_queue, recovery
from reliable_mq.broker_core.store.checkpoint import load_checkpoint, save_checkpoint
from reliable_mq.broker_core.store.commit_log import Batch, CommitLog
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.disk import Disk, is_out_of_room
from reliable_mq.broker_core.store.evidence import Evidence
from reliable_mq.broker_core.store.log_walk import record_at, store_time_ms
from reliable_mq.broker_core.store.message_index import IndexSizes, MessageIndex
from reliable_mq.broker_core.store.progress import (
    Progress,
    QueueExtent,
    load_progress,
    save_progress,
)
from reliable_mq.broker_core.store.queue_upkeep import QueueUpkeep
from reliable_mq.broker_core.store.retention import Closeable
from reliable_mq.errors import InvariantBroken, StoreError
from reliable_mq.wire.record import Record, decode_record, encode_record_fields

log = logging.getLogger(__name__)

ABORT_PATH = "abort"


class StoredMessage(msgspec.Struct, kw_only=True, gc=False):
    """What is to be stored. Times in milliseconds; hosts packed as in a record."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_time_ms: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class Place(msgspec.Struct, gc=False):
    """Where a message went. It is durable when the log is durable up to `end`."""

    commit_log_offset: int
    queue_offset: int
    end: int


class MessageStore:
    """A log, its queues and its checkpoint, in one folder.

    Args:
        disk: the folder.
        segment_size: bytes of one file of the log.
        queue_file_size: bytes of one file of a consume queue.
        store_host: this broker, packed as in a record.
        delays_ms: the delay of each level.
        process_id: kept in the file `abort` while the store is open.
        is_sync_flush: whether records are dispatched only when they are durable.
        index_sizes: of the index files; None for no index.

    Raises:
        StoreCorrupt: when a segment is missing in the middle or has another size.
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
        self._store_host = store_host
        self._delays_ms = delays_ms
        self._process_id = process_id
        self._is_sync_flush = is_sync_flush
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._undispatched: deque[DispatchEntry] = deque()
        self._last_time_ms = 0
        self._dispatched = _Dispatched()
        self.upkeep = QueueUpkeep(self._queues, self._next_offsets)
        self._opened_end = 0
        self._noted_end = -1  # how far the last checkpoint reached
        self.log = CommitLog(disk, segment_size)
        self.index = MessageIndex(disk, self.log, index_sizes) if index_sizes else None
        self.on_dispatch: Callable[[DispatchEntry], None] | None = None

    @property
    def dispatched(self) -> int:
        """The log offset up to which the queues know the log."""
        return self._dispatched.end

    def open(self) -> None:
        """Recover what the folder holds, and mark it as in use.

        Raises:
            StoreCorrupt: when a file says what it cannot say. Nothing was changed then.
            StoreError: when a newer broker wrote the store. Nothing was changed then.
        """
        progress = load_progress(self._disk)
        checkpoint = load_checkpoint(self._disk)
        self._load_queues()
        evidence = Evidence(
            self.log,
            self._queues,
            checkpoint,
            progress,
            self._disk.size_of(ABORT_PATH) >= 0,
            self._disk.boot_id,
            self._delays_ms,
        )
        is_same_boot = evidence.is_same_boot
        plan = recovery.plan(evidence)
        plan.tell(self.log)
        self.log.damage.sought_from = plan.verified_from
        self._disk.write_text(ABORT_PATH, str(self._process_id))
        for topic, queue_id in plan.units:
            self._queue(topic, queue_id)
        plan.carry_out(self.log, self._queues)
        if self.index:
            self.index.open(
                is_whole=is_same_boot or not evidence.was_killed,
                was_killed=evidence.was_killed,
                safe_time_ms=checkpoint.index_time_ms,
            )
        self._opened_end = self.log.end
        self._next_offsets.update({key: queue.end for key, queue in self._queues.items()})
        last = plan.last_record
        if last:
            self._last_time_ms = store_time_ms(last)
            self._dispatched = _Dispatched(last.offset + last.size, last.offset, self._last_time_ms)
        else:
            self._dispatched = _Dispatched(self.log.start)
        self.invariants()
        for queue in self._queues.values():
            queue.take_growth()
            for file, path in queue.trim(self.log.start):
                file.close()
                self._disk.remove(path)
        self.checkpoint()

    def _load_queues(self) -> None:
        for topic in self._disk.names(consume_queue.FOLDER):
            for queue_id in self._disk.names(f"{consume_queue.FOLDER}/{topic}"):
                if queue_id.isdecimal():
                    self._queue(topic, int(queue_id))

    def invariants(self) -> None:
        """D1; see the module's head."""
        safe = self.log.durable if self._is_sync_flush else self.log.written
        if self._dispatched.end > safe:
            raise InvariantBroken(f"D1: dispatched {self._dispatched.end}, safe {safe}")

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = ConsumeQueue(self._disk, topic, queue_id, self._queue_file_size)
            self._queues[key] = queue
        return queue

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None when it never had a message."""
        return self._queues.get((topic, queue_id))

    def append(self, message: StoredMessage, now_ms: int) -> Place:
        """Give a message its place. Its bytes leave with the next `take_batch`."""
        return self.append_like(message, message.body, message.properties, message.flag, now_ms)

    def append_like(
        self, message: StoredMessage, body: bytes, properties: bytes, flag: int, now_ms: int
    ) -> Place:
        """Append a message that is like `message`, save for these: one of a batch."""
        topic_name, queue_id, sys_flag = message.topic, message.queue_id, message.sys_flag
        key = (topic_name, queue_id)
        has_unit = is_queued(sys_flag)
        queue_offset = self._next_offsets.get(key, 0) if has_unit else 0
        store_time_ms = self._last_time_ms = max(now_ms, self._last_time_ms)
        topic = topic_name.encode()
        size = (
            75
            + len(body)
            + len(topic)
            + (len(topic) > 127)
            + len(properties)
            + len(message.born_host)
            + len(self._store_host)
        )
        log = self.log
        offset = log.room_for(size)
        end = offset + size
        log.add(
            encode_record_fields(
                topic=topic,
                body=body,
                properties=properties,
                queue_id=queue_id,
                flag=flag,
                queue_offset=queue_offset,
                commit_log_offset=offset,
                sys_flag=sys_flag,
                born_time_ms=message.born_time_ms,
                born_host=message.born_host,
                store_time_ms=store_time_ms,
                store_host=self._store_host,
                reconsume_times=message.reconsume_times,
                prepared_transaction_offset=message.prepared_transaction_offset,
            )
        )
        if has_unit:
            self._next_offsets[key] = queue_offset + 1
        tags_code = queue_tags_code(topic_name, properties, store_time_ms, self._delays_ms)
        self._undispatched.append(
            DispatchEntry(
                topic_name,
                queue_id,
                queue_offset,
                offset,
                size,
                tags_code,
                store_time_ms,
                has_unit,
                end,
            )
        )
        return Place(offset, queue_offset, end)

    def take_batch(self) -> Batch | None:
        """Return what was appended since the last call."""
        return self.log.take_batch()

    def dispatch_up_to(self, end: int) -> int:
        """Put the records that lie before `end` into their queues; return how many."""
        undispatched, on_dispatch = self._undispatched, self.on_dispatch
        touched: dict[tuple[str, int], ConsumeQueue] = {}
        last = None
        count = 0
        while undispatched and undispatched[0].end <= end:
            last = entry = undispatched.popleft()
            count += 1
            if entry.is_queued:
                key = (entry.topic, entry.queue_id)
                queue = touched.get(key)
                if queue is None:
                    queue = touched[key] = self._queue(entry.topic, entry.queue_id)
                queue.put(entry.queue_offset, entry.commit_log_offset, entry.size, entry.tags_code)
                if on_dispatch:
                    on_dispatch(entry)
        if last is not None:
            self._dispatched = _Dispatched(last.end, last.commit_log_offset, last.store_time_ms)
            self.invariants()
            self.upkeep.flush(touched.values())
        return count

    def read_record(self, commit_log_offset: int) -> Record | None:
        """Return the record at an offset, or None when no sound one begins there."""
        found = record_at(self.log, commit_log_offset)
        return decode_record(found.buffer) if found else None

    def expire(self, count: int) -> list[tuple[Closeable, str]]:
        """Forget the oldest segments; return files that may be closed and removed.

        That the log now begins later must be on the medium first: `begin_checkpoint` sees to it.
        The queues follow with `upkeep.trim_some`.
        """
        gone: list[tuple[Closeable, str]] = [*self.log.take_oldest(count)]
        if gone:
            self._noted_end = -1
            if self.index:
                gone += self.index.take_expired(self.log.start)
            self.upkeep.trim_all()
        return gone

    def begin_checkpoint(self) -> Callable[[], None]:
        """Return the work of a checkpoint as of now.

        It may run in another thread, between two writes of batches. It syncs log and queues, notes
        how far that reaches, and makes the next segment ahead of need.

        Raises, when it runs:
            StoreError, OSError: when the disk fails. Nothing is noted then, and the store is of no
                further use: what the queues hold is no longer known to become durable.
        """
        dispatched = self._dispatched
        is_news = dispatched.end != self._noted_end
        unsynced = [file for queue in self._queues.values() for file in queue.take_unsynced()]
        progress = self._progress()
        # What `open` found was synced by it.
        segments = self.log.segments_from(max(self._noted_end, self._opened_end))
        index_files = self.index.take_full() if self.index else []

        def work() -> None:
            for file in (*segments, *unsynced):
                file.sync()
            for index_file in index_files:
                index_file.sync()
            try:
                if is_news or unsynced:
                    index_time_ms = index_files[-1].end_time_ms if index_files else 0
                    self._note(progress, index_time_ms)
                    self._noted_end = dispatched.end
                self.log.prepare_segment()
            except (OSError, StoreError) as error:
                if not is_out_of_room(error):
                    raise
                log.warning("no room for a checkpoint, the last one stays: %s", error)

        return work

    def _note(self, progress: Progress, index_time_ms: int) -> None:
        save_progress(self._disk, progress)
        checkpoint = load_checkpoint(self._disk)
        checkpoint.commit_log_time_ms = progress.last_time_ms
        checkpoint.consume_queue_time_ms = progress.last_time_ms
        checkpoint.index_time_ms = index_time_ms or checkpoint.index_time_ms
        save_checkpoint(self._disk, checkpoint)

    def _progress(self) -> Progress:
        queues: dict[str, dict[int, QueueExtent]] = {}
        for (topic, queue_id), queue in self._queues.items():
            if queue.end > 0:  # also one whose messages have all expired: it goes on counting
                noted = QueueExtent(queue.first, queue.end, queue.last_log_offset)
                queues.setdefault(topic, {})[queue_id] = noted
        return Progress(
            boot_id=self._disk.boot_id,
            is_sync_flush=self._is_sync_flush,
            log_start=self.log.start,
            log_end=self._dispatched.end,
            last_record=self._dispatched.last_record,
            last_time_ms=self._dispatched.time_ms,
            queues=queues,
        )

    def index_some(self, now_ms: int) -> int:
        """List the next records in the index; return how many. See `MessageIndex.advance`."""
        end = self._dispatched.end
        if self.index is None or self.index.indexed >= end:
            return 0
        return self.index.advance(end, now_ms)

    @property
    def index_lag(self) -> int:
        """How many visible bytes of the log are not in the index yet."""
        return 0 if self.index is None else max(0, self._dispatched.end - self.index.indexed)

    @property
    def is_indexed(self) -> bool:
        """Whether every visible record is in the index, as far as there is one."""
        return self.index is None or self.index.indexed >= self._dispatched.end

    def checkpoint(self) -> None:
        """Sync log and queues, and note how far that reaches."""
        self.begin_checkpoint()()

    def close(self) -> None:
        """Checkpoint, take the mark of use away, and let go of the files."""
        if self.index:
            self.index.close()
        self.checkpoint()
        self._disk.remove(ABORT_PATH)
        for queue in self._queues.values():
            queue.close()
        self.log.close()


class _Dispatched(msgspec.Struct, frozen=True):
    """How far the queues know the log: the end and the begin of the last record, and its time."""

    end: int = 0
    last_record: int = -1
    time_ms: int = 0
