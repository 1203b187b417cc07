"""Evidence: the state of the disk when a store is opened, and what it proves about a bad place.

Receives log, queues, checkpoint and progress note. Decides whether the log ends at a bad place,
continues after it, or cannot be used. Changes nothing. `recovery` documents the rules.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from reliable_mq.broker_core.store.checkpoint import Checkpoint
from reliable_mq.broker_core.store.commit_log import CommitLog, segment_path
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.deletions import Deletions
from reliable_mq.broker_core.store.log_walk import (
    FoundRecord,
    blank_behind,
    next_record,
    record_at,
    store_time_ms,
)
from reliable_mq.broker_core.store.progress import NotedQueues, StoreProgress
from reliable_mq.errors import StoreCorrupt, StoreError
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.wire.record import MAGIC_V1, MAGIC_V2
from reliable_mq.wire.record_scan import MAGIC_PLACE, is_of_newer_version, valid_size_at

QueueKey = tuple[str, int]


class Evidence(NamedTuple):
    """The content of the disk, and how the store was closed."""

    log: CommitLog
    queues: Mapping[QueueKey, ConsumeQueue]
    checkpoint: Checkpoint
    progress: StoreProgress | None
    was_killed: bool
    boot_id: str
    delays_ms: Mapping[int, int]
    deletions: Deletions
    units_per_file: int
    seen: Collection[QueueKey] = frozenset()  # queues that a look has confirmed
    unseen: NotedQueues | None = None  # what the note says of the others; None: of all

    @property
    def loaded(self) -> dict[QueueKey, ConsumeQueue]:
        """The queues that no look has confirmed."""
        return {key: queue for key, queue in self.queues.items() if key not in self.seen}

    @property
    def newest_progress(self) -> StoreProgress | None:
        """The progress note, if no other broker wrote the store after it; else None."""
        note = self.progress
        return note if note and note.is_newest(self.checkpoint) else None

    @property
    def is_same_boot(self) -> bool:
        """Whether the machine has run since the store was opened, so only the process crashed."""
        note = self.newest_progress
        return note is not None and note.boot_id == self.boot_id != ""

    def is_confirmed(self, note: StoreProgress) -> bool:
        """Whether the log still has the last record of the note."""
        return confirms(self.log, note)

    def was_durable(self, record: FoundRecord) -> bool:
        """Whether a record is known to have been complete before the last stop."""
        if not self.was_killed or store_time_ms(record) < self.checkpoint.commit_log_time_ms:
            return True
        note = self.newest_progress
        if note is None:
            return self.checkpoint.commit_log_time_ms == 0
        is_in_queue = any(queue.log_end > record.offset for queue in self.queues.values())
        return record.offset < note.log_end or (
            is_in_queue and (note.is_sync_flush or self.is_same_boot)
        )

    def written_behind(self, place: int) -> FoundRecord | None:
        """Return the first valid record after a place, if it proves that the place was written.

        See rule 4. The durable part is a prefix of the log, so the first record is sufficient.
        """
        later = next_record(self.log, place)
        is_proof = later is not None and (self.is_same_boot or self.was_durable(later))
        return later if is_proof else None

    def next_valid_offset(self, bad: int) -> int:
        """Return where the log continues after a place without a valid record; -1: it ends there.

        Raises:
            StoreCorrupt: when the rest of the segment is damaged; see rule 3.
            StoreError: when the log continues in a newer format.
        """
        log = self.log
        if bad >= log.capacity_end:
            return -1
        first, segment = log.segment_at(bad)
        is_newer = is_of_newer_version(memoryview(segment.read(bad - first, 128)), 0, bad)
        if is_newer and not _is_magic_damaged(log, bad):
            raise StoreError(
                f"{segment_path(first)}: the record at {bad - first} (log offset {bad}) has a "
                "newer format; use the broker that wrote it"
            )
        later = self.written_behind(bad)
        if later is None or later.offset < first + log.segment_size:
            return later.offset if later else -1
        blank = blank_behind(log, bad)
        if blank >= 0:
            return blank
        later_first, _segment = log.segment_at(later.offset)
        raise StoreCorrupt(
            f"{segment_path(first)}: no valid record at {bad - first} (log offset {bad}), nor "
            f"behind it in this segment, but one at {later.offset - later_first} of "
            f"{segment_path(later_first)}; restore the file from a copy"
        )


def confirms(log: CommitLog, note: StoreProgress) -> bool:
    """Whether the log still has the last record of the note."""
    if note.last_record < 0:
        return note.log_end == log.start
    record = record_at(log, note.last_record)
    return (
        record is not None
        and record.offset + record.size == note.log_end
        and store_time_ms(record) == note.last_time_ms
    )


def _is_magic_damaged(log: CommitLog, bad: int) -> bool:
    """Whether a record is sound except for its magic, and a record or a blank follows directly.

    This is more likely than a newer format that differs only in the magic and is mixed with ours.
    """
    first, segment = log.segment_at(bad)
    size = int.from_bytes(segment.read(bad - first, 4))
    if size > FRAME_SIZE_MAX:
        return False
    if record_at(log, bad + size) is None and blank_behind(log, bad) != bad + size:
        return False
    record = bytearray(segment.read(bad - first, size))
    for magic in (MAGIC_V1, MAGIC_V2):
        record[MAGIC_PLACE : MAGIC_PLACE + 4] = magic.to_bytes(4)
        if valid_size_at(memoryview(record), 0, bad):
            return True
    return False
