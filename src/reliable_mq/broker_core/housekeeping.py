"""Keeping house: the log's old files go, then queues and index follow, a few at a time.

Receives what a look at the disk found; hands on the work that removes files, for another thread;
refuses to block: nothing here takes longer than a few queues take. Files are forgotten first, then
the medium learns that the log begins later, then they are removed: a crash in between leaves files
too many, never too few.
"""

from collections.abc import Callable, Sequence

from reliable_mq.broker_core.names import is_system_topic
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.deletions import PATH as DELETIONS_PATH
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.retention import (
    PATH,
    Closeable,
    DiskSurvey,
    FileRemoval,
    hours_ms,
    survey,
)
from reliable_mq.line_limit import limited_log
from reliable_mq.watched_time import ClockReading

log = limited_log(__name__)

_QUEUES_AT_ONCE = 64


class Housekeeping:
    """Removes what is too old, and says when the disk is too full to write."""

    def __init__(self, state: BrokerState, disk: Disk) -> None:
        self._state = state
        self._disk = disk
        self._removal = FileRemoval(disk, state.config.redelete_interval_ms)
        self._gone: list[tuple[Closeable, str]] = []

    def look(self) -> Callable[[], DiskSurvey]:
        """Return the look at the disk that `begin` wants; it may run in another thread."""
        oldest = self._state.store.log.segment_starts[:-1][: self._state.config.delete_batch_max]
        return lambda: survey(self._disk, oldest)

    def begin(self, found: DiskSurvey, reading: ClockReading) -> Callable[[], None] | None:
        """Forget what is too old; return the work that removes it, None when there is nothing.

        Args:
            found: what the look at the disk found.
            reading: the clock that dates files, and one that nobody sets.
        """
        state, retention = self._state, self._state.retention
        was_full, now_ms = retention.is_full, round(reading.wall * 1000)
        if told := retention.look(reading):
            log.warning("files of the log: %s", told)
        if retention.is_worth_noting:
            state.files.change(PATH, retention.dump)
        count = retention.judge(found, now_ms)
        _all, free_size = found.capacity
        state.pressure.note_disk(found.used, is_full=retention.is_full, free_size=free_size)
        if retention.is_full != was_full:
            told = "sends are refused until there is room" if not was_full else "sends go on"
            log.warning("the disk is %.0f %% full, %s", found.used * 100, told)
        if count:
            self._expire(count, found.used)
        if state.wants_unused_dropped:
            state.wants_unused_dropped = False
            self._drop_unused()
        state.store.upkeep.flush()
        self._forget(state.store.upkeep.take_gone())
        gone, self._gone = self._gone, []
        if not gone:
            return None
        checkpoint = state.store.begin_checkpoint()
        remove = self._removal.job(gone, now_ms)

        def work() -> None:
            checkpoint()
            if state.store.is_start_noted:
                remove()
            else:  # no room for the note: without the files the next start would miss them
                self._gone[:0] = gone

        return work

    def finish(self) -> None:
        """Remove what was forgotten, when the store is closed and its note is written.

        The next to open the store may be Apache's broker, which would read files that are left.
        """
        self._forget(self._state.store.upkeep.take_gone())
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
            log.warning(
                "the disk is %.0f %% full: %d files of the log go (%d bytes), %d of them before "
                "their fileReservedTime of %d h; whoever has not read their messages misses them",
                used * 100,
                files,
                size,
                young,
                retention.rules.reserved_ms // hours_ms(1),
            )
        log.info("the log now begins at %d", store.log.start)

    def run_some(self) -> None:
        """Let a few queues follow the log."""
        store = self._state.store
        self._forget(store.upkeep.trim_some(store.log.start, _QUEUES_AT_ONCE))

    def _drop_unused(self) -> None:
        """Forget the queues of topics that are no more, when their messages are gone, too."""
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
