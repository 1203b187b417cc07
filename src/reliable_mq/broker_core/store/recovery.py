"""Opening a store after a stop or a crash: where the log ends, and what the queues lack.

Receives log, queues, checkpoint and note as they lie on the disk; hands on a plan; refuses to
change anything while it looks, and to guess. `Plan.carry_out` changes the files.

Rule 1. The log ends at the first place where no valid record is. What stands behind it goes.
Rule 2. Except when a valid record stands behind it that was durable: then the bytes between were
    too, and something destroyed them. The store is refused, nothing is changed.
Rule 3. A system that lost its power may have written the last bytes in any order, so that a valid
    record behind a hole proves nothing. It proves damage when the store was closed, when the
    machine runs since the store was opened, or when the note, the checkpoint or, with SYNC_FLUSH,
    a queue knows it.
Rule 4. A record's checksum does not cover its properties. A zero byte among them, in a record that
    is not known to have been durable, is a part of it that was lost: the log ends before it.
Rule 5. Of the queues only what was synced is believed; the rest is built from the log again. A
    queue that lacks units which the note knows, or that the log goes on without, is built again
    from the first record.
Rule 6. Of a log that is known to be whole only the newest part is read again: bit rot in older
    segments is found by reconciliation, not by a start that takes minutes.

Apache RocketMQ's `CommitLog.recoverNormally` and `recoverAbnormally` know rules 1 and 5 (by
segment), and cut the log where it is damaged.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from reliable_mq.broker_core.dispatch import is_queued, queue_tags_code
from reliable_mq.broker_core.store.checkpoint import Checkpoint
from reliable_mq.broker_core.store.commit_log import CommitLog, segment_path
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, pack_unit
from reliable_mq.broker_core.store.log_walk import (
    Found,
    LogWalk,
    next_record,
    record_at,
    store_time_ms,
)
from reliable_mq.broker_core.store.progress import PATH as PROGRESS_PATH
from reliable_mq.broker_core.store.progress import Progress, QueueExtent
from reliable_mq.errors import StoreCorrupt, StoreError
from reliable_mq.wire.record_scan import RecordHead, head_at, is_of_newer_version

VERIFIED_SIZE = 256 * 1024 * 1024  # how much of a log that is known to be whole is read again

QueueKey = tuple[str, int]


class Evidence(NamedTuple):
    """What lies on the disk, and how the store was left."""

    log: CommitLog
    queues: Mapping[QueueKey, ConsumeQueue]
    checkpoint: Checkpoint
    progress: Progress | None
    was_killed: bool
    boot_id: str
    delays_ms: Mapping[int, int]

    @property
    def newest_progress(self) -> Progress | None:
        """The note, when nobody else wrote the store since."""
        note = self.progress
        return note if note and note.is_newest(self.checkpoint) else None

    @property
    def is_same_boot(self) -> bool:
        """Whether the machine runs since the store was opened: only the process may have died."""
        note = self.newest_progress
        return note is not None and note.boot_id == self.boot_id != ""


class NewUnits:
    """Units that a queue gets from the log, from message `begin` on."""

    __slots__ = ("begin", "end", "known_until", "units")

    def __init__(self, begin: int | None, known_until: int) -> None:
        self.begin = begin  # None: wherever the first record is
        self.end = begin  # the number of the next message
        self.known_until = known_until  # records before this offset are in the queue
        self.units = bytearray()


class Plan(msgspec.Struct, kw_only=True):
    """What is to be done, and what was found.

    `queue_ends` are the queues that stay, and up to which message; the others begin anew.
    `lost_from` is where the log was known to reach when it now ends before (-1: it does not).
    """

    log_end: int
    verified_from: int
    last_record: Found | None = None
    queue_ends: dict[QueueKey, int]
    units: dict[QueueKey, NewUnits]
    lost_from: int = -1

    def carry_out(self, log: CommitLog, queues: Mapping[QueueKey, ConsumeQueue]) -> None:
        """Change the files. `queues` hold every queue of the plan.

        The log comes first and is durable: a queue never knows a record that a crash can take away.
        """
        log.cut(self.log_end)
        for segment in log.segments_from(self.verified_from):
            segment.sync()
        for key, queue in queues.items():
            if key in self.queue_ends:
                queue.cut(self.queue_ends[key])
            else:
                queue.reset()
            new = self.units.get(key)
            if new and new.units:
                queue.extend(new.begin or 0, bytes(new.units))


class _Known(NamedTuple):
    """Up to where log and queues are known to agree, and the queues that must begin anew."""

    log_end: int
    is_proven: bool  # by the note; else by the checkpoint's time, to a segment's start
    lost: frozenset[QueueKey]


class _Gap(Exception):
    """A record does not follow what its queue holds."""

    def __init__(self, key: QueueKey, record: Found, queue_offset: int) -> None:
        super().__init__(key)
        self.key = key
        self.record = record
        self.queue_offset = queue_offset


def plan(evidence: Evidence) -> Plan:
    """Return what has to be done before the store can be used.

    Raises:
        StoreCorrupt: when a segment is damaged in the middle or missing; names file and offset.
        StoreError: when the log goes on in a format that is not known here.
    """
    _refuse_missing_segments(evidence)
    known = _known(evidence)
    while True:
        try:
            return _plan(evidence, known)
        except _Gap as gap:
            if gap.key in known.lost:
                raise _out_of_order(evidence.log, gap) from None
            known = known._replace(lost=known.lost | {gap.key})


def _out_of_order(log: CommitLog, gap: _Gap) -> StoreCorrupt:
    first, _segment = log.segment_at(gap.record.offset)
    return StoreCorrupt(
        f"{segment_path(first)}: the record at {gap.record.offset - first} (log offset "
        f"{gap.record.offset}) says it is message {gap.queue_offset} of {gap.key[0]} queue "
        f"{gap.key[1]}, where another one is due; restore the file from a copy"
    )


def _refuse_missing_segments(evidence: Evidence) -> None:
    note, log = evidence.newest_progress, evidence.log
    if note is None or note.last_record < 0:
        return
    missing = -1
    if log.capacity_end <= note.last_record:
        missing = log.capacity_end
    elif note.log_start < log.start:
        missing = note.log_start
    if missing >= 0:
        raise StoreCorrupt(
            f"{segment_path(missing)}: this segment is missing, {PROGRESS_PATH} knows the log from "
            f"{note.log_start} to {note.log_end}; restore it from a copy, or remove that note to "
            "go on without these messages"
        )


def _known(evidence: Evidence) -> _Known:
    log, note, queues = evidence.log, evidence.progress, evidence.queues
    lost = {key for key, queue in queues.items() if not queue.is_contiguous}
    if note and _bears_out(log, note):
        for topic, ends in note.queues.items():
            for queue_id, noted in ends.items():
                queue = queues.get((topic, queue_id))
                if queue is None or not _holds(queue, noted, log.start > note.log_start):
                    lost.add((topic, queue_id))
        return _Known(note.log_end, True, frozenset(lost))
    if not evidence.was_killed:
        known = [queue.log_end for queue in queues.values() if queue.is_contiguous]
        return _Known(max(known, default=log.start), True, frozenset(lost))
    safe_time_ms = evidence.checkpoint.safe_time_ms
    for first in reversed(log.segment_starts):
        record = record_at(log, first)
        if record and 0 < store_time_ms(record) <= safe_time_ms:
            return _Known(first, False, frozenset(lost))
    return _Known(log.start, False, frozenset(lost))


def _bears_out(log: CommitLog, note: Progress) -> bool:
    """Whether the log still holds the last record that the note knows."""
    if note.last_record < 0:
        return note.log_end == log.start
    record = record_at(log, note.last_record)
    return (
        record is not None
        and record.offset + record.size == note.log_end
        and store_time_ms(record) == note.last_time_ms
    )


def _holds(queue: ConsumeQueue, noted: QueueExtent, is_log_shorter: bool) -> bool:
    """Whether a queue has all units that the note knows, save those that expired with the log."""
    if not queue.is_contiguous or queue.end < noted.end:
        return False
    if queue.first > noted.first and not is_log_shorter:
        return False
    if queue.first >= noted.end:
        return True
    last = queue.unit(noted.end - 1)
    return last.commit_log_offset == noted.last_log_offset and queue.is_filled(noted.end)


def _plan(evidence: Evidence, known: _Known) -> Plan:
    log, queues = evidence.log, evidence.queues
    keep = {
        key: queue.index_of(known.log_end) if evidence.was_killed else queue.end
        for key, queue in queues.items()
        if key not in known.lost
    }
    dispatch_from = log.start if known.lost else min(known.log_end, log.capacity_end)
    verified_from = min(dispatch_from, _verified_from(evidence, known, keep))
    units = {
        key: _new_units(queues[key], keep[key]) if key in keep else NewUnits(None, log.start)
        for key in {*queues, *known.lost}
    }
    result = Plan(log_end=0, verified_from=verified_from, queue_ends=keep, units=units)
    walk = LogWalk(log, verified_from, dispatch_from)
    for record in walk:
        head = head_at(record.buffer, record.at)
        if b"\0" in head.properties and not _was_durable(evidence, record):
            break
        _dispatch(record, head, evidence, known, units)
    for key in [key for key in keep if _lost_its_head(evidence, key, keep[key], units[key])]:
        del keep[key]
    result.last_record = record_at(log, walk.last) if walk.last >= 0 else None
    result.log_end = walk.end
    _judge_end(evidence, walk.end)
    reached = [known.log_end] if known.is_proven else []
    if evidence.newest_progress:
        reached.append(evidence.newest_progress.log_end)
    if max(reached, default=0) > walk.end:
        result.lost_from = max(reached)
    for key, end in keep.items():
        if queues[key].log_end > walk.end:
            keep[key] = min(end, queues[key].index_of(walk.end))
    return result


def _verified_from(evidence: Evidence, known: _Known, keep: Mapping[QueueKey, int]) -> int:
    """Return where a record begins, `VERIFIED_SIZE` bytes or a little more before the known end."""
    target = known.log_end - VERIFIED_SIZE
    if target <= evidence.log.start:
        return evidence.log.start
    begins = [first for first in evidence.log.segment_starts if first <= target]
    for key, end in keep.items():
        queue = evidence.queues[key]
        index = min(queue.index_of(target + 1), end) - 1
        if index >= queue.first:
            begins.append(queue.unit(index).commit_log_offset)
    return max(begins)


def _new_units(queue: ConsumeQueue, end: int) -> NewUnits:
    if end <= queue.first:
        return NewUnits(None, 0)
    last = queue.unit(end - 1)
    return NewUnits(end, last.commit_log_offset + last.size)


def _lost_its_head(evidence: Evidence, key: QueueKey, keep: int, new: NewUnits) -> bool:
    """Whether a queue, none of whose units is believed, seems to begin too late.

    When the power fails, a file that was just made may be gone though a later one is there.
    """
    queue, note = evidence.queues[key], evidence.newest_progress
    if keep > queue.first:
        return False
    if new.units:
        return new.begin != queue.first
    if queue.first == 0 or note is None or not evidence.was_killed or evidence.is_same_boot:
        return False
    return key[1] not in note.queues.get(key[0], {})


def _dispatch(
    record: Found,
    head: RecordHead,
    evidence: Evidence,
    known: _Known,
    units: dict[QueueKey, NewUnits],
) -> None:
    """Add a record's unit to its queue, unless the queue knows it."""
    if not is_queued(head.sys_flag):
        return
    key = (head.topic, head.queue_id)
    new = units.get(key)
    if new is None:
        new = units[key] = NewUnits(None, 0)
    if record.offset < new.known_until:
        return
    if head.queue_offset != new.end:
        # A queue begins with its first record, or anew with message 0 of a topic made anew.
        is_begin = new.end is None or head.queue_offset == 0
        is_whole = key in known.lost or (new.end is None and head.queue_offset == 0)
        if not (is_begin and is_whole):
            raise _Gap(key, record, head.queue_offset)
        new.begin = head.queue_offset
        new.units.clear()
    new.end = head.queue_offset + 1
    new.units += pack_unit(
        record.offset,
        record.size,
        queue_tags_code(head.topic, head.properties, head.store_time_ms, evidence.delays_ms),
    )


def _judge_end(evidence: Evidence, end: int) -> None:
    """Tell a log that ends from one that is damaged.

    Raises:
        StoreCorrupt: see rules 2 and 3.
        StoreError: when the log goes on in a newer format.
    """
    log = evidence.log
    if end >= log.capacity_end:
        return
    first, segment = log.segment_at(end)
    if is_of_newer_version(memoryview(segment.read(end - first, 128)), 0, end):
        raise StoreError(
            f"{segment_path(first)}: the record at {end - first} (log offset {end}) has a newer "
            "format; use the broker that wrote it"
        )
    later = next_record(log, end)
    if later is None or not _proves_damage(evidence, later):
        return
    later_first, _segment = log.segment_at(later.offset)
    raise StoreCorrupt(
        f"{segment_path(first)}: no valid record at {end - first} (log offset {end}), but one "
        f"follows at {later.offset - later_first} of {segment_path(later_first)}; restore the "
        "file from a copy"
    )


def _proves_damage(evidence: Evidence, later: Found) -> bool:
    """Rule 3: whether a valid record behind a bad place proves that the place was written."""
    return evidence.is_same_boot or _was_durable(evidence, later)


def _was_durable(evidence: Evidence, record: Found) -> bool:
    """Whether a record was complete before the last stop."""
    if not evidence.was_killed or store_time_ms(record) < evidence.checkpoint.commit_log_time_ms:
        return True
    note = evidence.newest_progress
    if note is None:
        return evidence.checkpoint.commit_log_time_ms == 0
    is_in_queue = any(queue.log_end > record.offset for queue in evidence.queues.values())
    return record.offset < note.log_end or (
        is_in_queue and (note.is_sync_flush or evidence.is_same_boot)
    )
