"""Housekeeping: remove old log files, then trim queues and index, a few files at a time.

Receives the result of a disk survey. Returns jobs that remove files, to run in another thread.
Never blocks: a call takes no longer than a few queues need. The order is: forget the files in
memory, write the new start of the log to the medium, remove the files. A crash in between leaves
too many files, never too few.
"""

from collections.abc import Callable, Sequence

from reliable_mq.broker_core.names import is_system_topic
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.deletions import PATH as DELETIONS_PATH
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.marks import StoreMark
from reliable_mq.broker_core.store.retention import (
    PATH,
    Closeable,
    DiskSurvey,
    FileRemoval,
    hours_ms,
    survey,
)
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.watched_time import ClockReading

log = limited_log(__name__)

_QUEUES_AT_ONCE = 64


class Housekeeping:
    """Removes expired files, and decides when the disk is too full for messages."""

    def __init__(self, state: BrokerState, disk: Disk) -> None:
        self._state = state
        self._disk = disk
        self._removal = FileRemoval(disk, state.config.redelete_interval_ms)
        self._gone: list[tuple[Closeable, str]] = []
        self._looked_ms = 0

    def survey_job(self) -> Callable[[], DiskSurvey]:
        """Return the disk survey that `look` needs; it may run in another thread."""
        oldest = self._state.store.log.segment_starts[:-1][: self._state.config.delete_batch_max]
        return lambda: survey(self._disk, oldest)

    def look(self, found: DiskSurvey, reading: ClockReading) -> bool:
        """Forget expired files; return whether there are files for `removal`.

        Args:
            found: result of the disk survey.
            reading: the wall clock, which dates files, and a monotonic clock.
        """
        state, retention = self._state, self._state.retention
        was_full, now_ms = retention.is_full, round(reading.wall * 1000)
        if text := retention.check_clocks(reading):
            broker_events.LOG_CLOCK_JUMPED.log(log, problem=text)
        if retention.is_worth_noting:
            state.files.change(PATH, retention.dump)
        count = retention.files_to_remove(found, now_ms)
        _all, free_size = found.capacity
        state.pressure.note_disk(found.used, is_full=retention.is_full, free_size=free_size)
        if retention.is_full != was_full:
            text = "sends are refused until there is room" if not was_full else "sends resume"
            broker_events.DISK_FILLING.log(log, percent=found.used * 100, problem=text)
        if count:
            self._expire(count, found.used)
        if state.wants_unused_dropped:
            state.wants_unused_dropped = False
            self._drop_unused()
        self._forget(state.store.upkeep.take_restarted())
        self._looked_ms = now_ms
        return bool(self._gone)

    def removal(self, mark: StoreMark) -> Callable[[], None]:
        """Return the job that removes the forgotten files, after a checkpoint.

        Args:
            mark: its queues are written.
        """
        state = self._state
        self._forget(state.store.upkeep.take_restarted())
        gone, self._gone = self._gone, []
        checkpoint = state.store.begin_checkpoint(mark)
        remove = self._removal.job(gone, self._looked_ms)

        def work() -> None:
            checkpoint()
            if state.store.is_start_noted:
                remove()
            else:  # no room to write the new start: the next open would miss removed files
                self._gone[:0] = gone

        return work

    def finish(self) -> None:
        """Remove the forgotten files after the store is closed and the log's start is written.

        Apache's broker may open the store next, and would read the files that are left.
        """
        self._forget(self._state.store.upkeep.take_restarted())
        if self._state.store.is_start_noted:
            for file, path in self._gone:
                file.close()
                self._disk.remove(path)

    def _expire(self, count: int, used: float) -> None:
        store, retention = self._state.store, self._state.retention
        before = store.log.start
        self._forget(store.expire(count))
        size = store.log.start - before
        files = size // store.log.segment_size
        young = files - retention.old_count
        if young > 0:
            broker_events.LOG_FILES_FORCED.log(
                log,
                percent=used * 100,
                files=files,
                bytes=size,
                young=young,
                hours=retention.rules.reserved_ms // hours_ms(1),
            )
        broker_events.LOG_BEGIN_MOVED.log(log, log_offset=store.log.start)

    def run_some(self) -> None:
        """Trim a few queues to the start of the log."""
        store = self._state.store
        self._forget(store.upkeep.trim_some(store.log.start, _QUEUES_AT_ONCE))

    def _drop_unused(self) -> None:
        """Remove the queues of deleted topics, once the log has none of their messages."""
        topics, store = self._state.topics, self._state.store

        def is_used(name: str) -> bool:
            return topics.get(name) is not None or is_system_topic(name)

        def is_kept(name: str) -> bool:
            return is_used(name) or store.deletions.is_kept(name, store.log.start)

        self._forget(store.upkeep.drop_unused(store.log.start, is_kept))
        if store.deletions.forget(store.log.start, is_used):
            self._state.files.change(DELETIONS_PATH, store.deletions.dump)

    def _forget(self, files: Sequence[tuple[Closeable, str]]) -> None:
        self._gone += files
