"""The store as the broker sees it: append, make durable, dispatch, read.

Receives fields of a message; hands on its place in log and queue; refuses to know topics' rules.
Invariant D1: dispatched <= durable (SYNC_FLUSH) or <= written (ASYNC_FLUSH).
"""

from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from reliable_mq.broker_core.dispatch import DispatchEntry, dispatch_entry
from reliable_mq.broker_core.store import consume_queue, recovery
from reliable_mq.broker_core.store.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from reliable_mq.broker_core.store.commit_log import Batch, CommitLog
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, Unit
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.errors import RecordError
from reliable_mq.wire.record import Record, decode_record, encode_record_fields

ABORT_PATH = "abort"


class StoredMessage(msgspec.Struct, kw_only=True):
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
    tags_code: int = 0


class Place(msgspec.Struct):
    """Where a message went. It is durable when the log is durable up to `end`."""

    commit_log_offset: int
    queue_offset: int
    end: int


class MessageStore:
    """A log, its queues and its checkpoint, in one folder."""

    def __init__(
        self,
        disk: Disk,
        *,
        segment_size: int,
        queue_file_size: int,
        store_host: bytes,
        delays_ms: Mapping[int, int],
        process_id: int = 0,
    ) -> None:
        self._disk = disk
        self._queue_file_size = queue_file_size
        self._store_host = store_host
        self._delays_ms = delays_ms
        self._process_id = process_id
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._undispatched: deque[DispatchEntry] = deque()
        self._last_time_ms = 0
        self._last_dispatched_time_ms = 0
        self.log = CommitLog(disk, segment_size)
        self.on_dispatch: Callable[[DispatchEntry], None] | None = None

    def open(self) -> None:
        """Recover what the folder holds, and mark it as in use.

        Raises:
            StoreCorrupt: when a file says what it cannot say.
        """
        self._load_queues()
        was_killed = self._disk.size_of(ABORT_PATH) >= 0
        checkpoint = load_checkpoint(self._disk)
        start = self._recovery_start(checkpoint, was_killed=was_killed)
        for record in recovery.scan(self.log, start):
            entry = dispatch_entry(record, self._delays_ms)
            self._last_time_ms = max(self._last_time_ms, record.store_time_ms)
            self._dispatch(entry)
        for queue in self._queues.values():
            queue.truncate(self.log.end)
        self._next_offsets = {key: queue.end for key, queue in self._queues.items()}
        self._disk.write_text(ABORT_PATH, str(self._process_id))

    def _load_queues(self) -> None:
        for topic in self._disk.names(consume_queue.FOLDER):
            for queue_id in self._disk.names(f"{consume_queue.FOLDER}/{topic}"):
                self._queue(topic, int(queue_id))

    def _recovery_start(self, checkpoint: Checkpoint, *, was_killed: bool) -> int:
        """Return the offset of a record before which log and queues are known to agree."""
        if not was_killed:
            return max((queue.log_end for queue in self._queues.values()), default=self.log.start)
        for first in reversed(self.log.segment_starts):
            record = self._first_record(first)
            if record and 0 < record.store_time_ms <= checkpoint.safe_time_ms:
                break
        else:
            first = self.log.start
        for queue in self._queues.values():
            queue.truncate(first)
        return first

    def _first_record(self, first: int) -> Record | None:
        _first, segment = self.log.segment_at(first)
        try:
            return decode_record(segment.read(0, 64 * 1024))
        except RecordError:
            return None

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
        key = (message.topic, message.queue_id)
        queue_offset = self._next_offsets.get(key, 0)
        store_time_ms = self._last_time_ms = max(now_ms, self._last_time_ms)
        topic = message.topic.encode()
        size = (
            91
            + len(message.body)
            + len(topic)
            + (len(topic) > 127)
            + len(message.properties)
            + len(message.born_host)
            + len(self._store_host)
            - 16
        )

        def encode(offset: int) -> bytes:
            return encode_record_fields(
                topic=topic,
                body=message.body,
                properties=message.properties,
                queue_id=message.queue_id,
                flag=message.flag,
                queue_offset=queue_offset,
                commit_log_offset=offset,
                sys_flag=message.sys_flag,
                born_time_ms=message.born_time_ms,
                born_host=message.born_host,
                store_time_ms=store_time_ms,
                store_host=self._store_host,
                reconsume_times=message.reconsume_times,
                prepared_transaction_offset=message.prepared_transaction_offset,
            )

        offset = self.log.append(size, encode)
        self._next_offsets[key] = queue_offset + 1
        self._undispatched.append(
            DispatchEntry(
                message.topic,
                message.queue_id,
                queue_offset,
                offset,
                size,
                message.tags_code,
                store_time_ms,
                True,
            )
        )
        return Place(offset, queue_offset, offset + size)

    def take_batch(self) -> Batch | None:
        """Return what was appended since the last call."""
        return self.log.take_batch()

    def dispatch_up_to(self, end: int) -> int:
        """Put the records that lie before `end` into their queues; return how many."""
        count = 0
        undispatched = self._undispatched
        while undispatched and undispatched[0].commit_log_offset + undispatched[0].size <= end:
            self._dispatch(undispatched.popleft())
            count += 1
        return count

    def _dispatch(self, entry: DispatchEntry) -> None:
        if not entry.is_queued:
            return
        unit = Unit(entry.commit_log_offset, entry.size, entry.tags_code)
        self._queue(entry.topic, entry.queue_id).put(entry.queue_offset, unit)
        self._last_dispatched_time_ms = entry.store_time_ms
        if self.on_dispatch:
            self.on_dispatch(entry)

    def read_record(self, commit_log_offset: int) -> Record | None:
        """Return the record at an offset, or None when none begins there."""
        size = int.from_bytes(self.log.read(commit_log_offset, 4), "big", signed=True)
        if size <= 0:
            return None
        try:
            return decode_record(self.log.read(commit_log_offset, size))
        except RecordError:
            return None

    def checkpoint(self) -> None:
        """Sync log and queues, and note how far that reaches."""
        time_ms = self._last_dispatched_time_ms
        self.log.sync_all()
        for queue in self._queues.values():
            queue.sync()
        save_checkpoint(
            self._disk,
            Checkpoint(commit_log_time_ms=time_ms, consume_queue_time_ms=time_ms),
        )

    def close(self) -> None:
        """Checkpoint, take the mark of use away, and let go of the files."""
        self.checkpoint()
        self._disk.remove(ABORT_PATH)
        for queue in self._queues.values():
            queue.close()
        self.log.close()
