"""Recovery of a store after a stop or a crash: where the log ends, and what the queues lack.

Receives log, queues, checkpoint and progress note from the disk. Returns a plan. Changes nothing
while it reads, and does not guess. `RecoveryPlan.carry_out` changes the files.

Rule 1. The log ends at the first place without a valid record. All bytes after it are removed.
Rule 2. Exception: a durable valid record follows. Then the bytes in between were durable, too, and
    something destroyed them. The log continues after such damage. The damage is logged and not
    changed, and the lost messages keep their numbers in the queues.
Rule 3. Damage up to the end of its segment, including the blank, means a damaged file, not a
    damaged record. The store is refused and nothing is changed.
Rule 4. After a power loss the last bytes may have been written in any order, so a valid record
    after a hole proves nothing. It proves damage if the store was closed, or if the machine has run
    since the store was opened. It also proves damage if the note or the checkpoint knows the
    record, or, with SYNC_FLUSH, a queue.
Rule 5. The checksum of a record does not cover its properties. If a record is not known to be
    complete, zeros in its properties may be a lost part, and the log ends before the record. Such
    zeros reach the end of a sector, at least 16 of them, or are the record's end with the rest of
    its sector. The client sent any other zero byte.
Rule 6. Only the synced part of a queue is trusted; the rest is rebuilt from the log. A queue that
    lacks units which the note knows, or which the log needs, is rebuilt from the first record.
Rule 7. Of a log that is known to be complete, only the newest part is read again. Bit rot in older
    segments is logged by the first reader; a start must not take minutes to find it.

Apache RocketMQ's `CommitLog.recoverNormally` and `recoverAbnormally` use rules 1 and 6 (by segment)
and cut the log at damage, so acknowledged messages after it are lost.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from reliable_mq.broker_core.dispatch import is_queued, queue_tags_code
from reliable_mq.broker_core.store.commit_log import CommitLog, segment_path
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.damage import DamagedRange
from reliable_mq.broker_core.store.evidence import Evidence, QueueKey
from reliable_mq.broker_core.store.log_walk import (
    FoundRecord,
    LogWalk,
    next_record,
    record_at,
    store_time_ms,
)
from reliable_mq.broker_core.store.new_units import NewUnits
from reliable_mq.broker_core.store.progress import PATH as PROGRESS_PATH
from reliable_mq.broker_core.store.progress import QueueExtent
from reliable_mq.errors import StoreCorrupt
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.record_scan import RecordHead, head_at

say = logging.getLogger(__name__)

SECTOR_SIZE = 512  # the smallest unit that a medium writes or loses
_LOST_PART = bytes(16)  # of fewer zeros, a client's own are more likely
VERIFIED_SIZE = 256 * 1024 * 1024  # bytes of a complete log that are read again
_SEARCHED_MAX = 64  # queues; the nearest record before a place is not needed, but a near one


class RecoveryPlan(msgspec.Struct, kw_only=True):
    """The findings, and the changes to make.

    `queue_ends` has the queues that are kept, and their message ends; other queues are rebuilt.
    `damage` lies before `log_end`: something destroyed records there.
    `torn`: valid records follow the end, but nothing proves that they were durable.
    `lost_from`: the known former end of the log, if it now ends earlier (-1: it does not).
    """

    log_end: int
    verified_from: int
    damage: list[DamagedRange]
    last_record: FoundRecord | None = None
    queue_ends: dict[QueueKey, int]
    units: dict[QueueKey, NewUnits]
    torn: bool
    lost_from: int = -1

    def log_findings(self, log: CommitLog) -> None:
        """Log every finding that is not normal."""
        for stretch in self.damage:
            log.log_damage(*stretch)
        if self.torn:
            broker_events.LOG_END_TORN.log(say, log_offset=self.log_end)
        if self.lost_from >= 0:
            broker_events.LOG_END_LOST.log(say, log_offset=self.log_end, lost_offset=self.lost_from)

    def keeps(self, key: QueueKey, queue: ConsumeQueue) -> bool:
        """Whether a queue stays as it is."""
        new = self.units.get(key)
        return self.queue_ends.get(key) == queue.end and not (new and new.units)

    def carry_out(self, log: CommitLog, queues: Mapping[QueueKey, ConsumeQueue]) -> None:
        """Change the files. `queues` must have every queue that the plan changes.

        The log is changed first, durably, so a queue never knows a record that a crash can remove.
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
            elif key not in self.queue_ends:
                queue.restart_at(queue.begin)


class _Known(NamedTuple):
    """The offset up to which log and queues agree, and the queues that must be rebuilt."""

    log_end: int
    is_proven: bool  # by the note; else only the checkpoint's time, at the start of a segment
    lost: frozenset[QueueKey]
    queue_ends: Mapping[QueueKey, int] | None = None  # of all queues, if the note has them

    def end_of(self, key: QueueKey, queue: ConsumeQueue) -> int:
        """Return the message number up to which a queue and the known log agree.

        The queue may have units beyond the note for a part of the log that the note covers. They
        are from a log that was cut: the power failed before their removal was on the medium.
        """
        end = queue.index_of(self.log_end)
        if self.queue_ends is None:
            return end
        return max(queue.first, min(end, self.queue_ends.get(key, 0)))


class _Gap(Exception):
    """A record is not the next message of its queue."""

    def __init__(self, key: QueueKey, record: FoundRecord, queue_offset: int) -> None:
        super().__init__(key)
        self.key = key
        self.record = record
        self.queue_offset = queue_offset


def plan(evidence: Evidence) -> RecoveryPlan:
    """Return the changes that are necessary before the store can be used.

    Raises:
        StoreCorrupt: when a segment is missing or is damaged to its end; names file and offset.
        StoreError: when the log continues in an unknown format.
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
        f"{gap.record.offset}) claims to be message {gap.queue_offset} of {gap.key[0]} queue "
        f"{gap.key[1]}, but another message is expected; restore the file from a copy"
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
            f"{segment_path(missing)}: this segment is missing; {PROGRESS_PATH} knows the log from "
            f"{note.log_start} to {note.log_end}; restore it from a copy, or remove that file to "
            "continue without these messages"
        )


def _known(evidence: Evidence) -> _Known:
    log, note, queues = evidence.log, evidence.progress, evidence.queues
    lost = {key for key, queue in evidence.loaded.items() if not queue.is_contiguous}
    if note and evidence.is_confirmed(note):
        noted_queues = note.queues if evidence.unseen is None else evidence.unseen
        for topic, ends in noted_queues.items():
            for queue_id, noted in ends.items():
                queue = queues.get((topic, queue_id))
                if queue is None or not _holds(queue, noted, log.start, note.log_start):
                    lost.add((topic, queue_id))
        noted_ends = {
            (topic, queue_id): noted.end
            for topic, ends in noted_queues.items()
            for queue_id, noted in ends.items()
        }
        return _Known(note.log_end, True, frozenset(lost), noted_ends)
    if not evidence.was_killed:
        known = [queue.log_end for queue in queues.values() if queue.is_contiguous]
        return _Known(max(known, default=log.start), True, frozenset(lost))
    if evidence.newest_progress:  # its last record is damaged, but its list of queues is usable
        of_topics = evidence.newest_progress.queues
        lost |= {(topic, queue_id) for topic in of_topics for queue_id in of_topics[topic]} - {
            *queues
        }
    safe_time_ms = evidence.checkpoint.safe_time_ms
    for first in reversed(log.segment_starts):
        record = record_at(log, first)
        if record and 0 < store_time_ms(record) <= safe_time_ms:
            return _Known(first, False, frozenset(lost))
    return _Known(log.start, False, frozenset(lost))


def _holds(queue: ConsumeQueue, noted: QueueExtent, log_start: int, noted_start: int) -> bool:
    """Whether a queue has all units of the note, except those that expired with the log."""
    if not queue.is_contiguous or queue.end < noted.end:
        return False
    if (
        # A queue is trimmed only after the new start of the log is noted. Then its first unit is
        # before the log, or it has no unit.
        queue.end > queue.first > noted.first
        and log_start == noted_start
        and queue.unit(queue.first).commit_log_offset >= log_start
    ):
        return False
    if queue.first >= noted.end:
        return True
    last = queue.unit(noted.end - 1)
    return last.commit_log_offset == noted.last_log_offset and queue.is_filled(noted.end)


def _plan(evidence: Evidence, known: _Known) -> RecoveryPlan:
    log, queues, loaded = evidence.log, evidence.queues, evidence.loaded
    keep = {
        key: known.end_of(key, queue) if evidence.was_killed else queue.end
        for key, queue in queues.items()
        if key not in known.lost
    }
    dispatch_from = log.start if known.lost else min(known.log_end, log.capacity_end)
    verified_from = min(dispatch_from, _verified_from(evidence, known, keep))
    units = {  # a queue that was seen gets its own with its first record
        key: _new_units(queues[key], keep[key]) if key in keep else NewUnits(None, log.start)
        for key in {*loaded, *known.lost}
    }
    damage: list[DamagedRange] = []
    walk = LogWalk(log, verified_from, dispatch_from)
    while True:
        for record in walk:
            head = head_at(record.buffer, record.at)
            if b"\0" in head.properties and not _was_whole(evidence, record, head):
                break
            _dispatch(record, head, evidence, known, units, damage)
        goes_on_at = evidence.next_valid_offset(walk.end)
        if goes_on_at < 0:
            break
        damage.append(DamagedRange(walk.end, goes_on_at))
        walk.end = goes_on_at
    for key in units.keys() & queues.keys() if damage else ():
        units[key].keep_damaged(damage, queues[key])
    headless = [key for key in keep.keys() & loaded.keys() if keep[key] <= loaded[key].first]
    for key in [key for key in headless if _lost_its_head(evidence, key, units[key])]:
        del keep[key]
    result = RecoveryPlan(
        log_end=walk.end,
        verified_from=verified_from,
        damage=damage,
        torn=walk.end < log.capacity_end and next_record(log, walk.end) is not None,
        last_record=record_at(log, walk.last) if walk.last >= 0 else None,
        queue_ends=keep,
        units=units,
    )
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
    """Return the begin of a record, at least `VERIFIED_SIZE` bytes before the known end."""
    target = known.log_end - VERIFIED_SIZE
    if target <= evidence.log.start:
        return evidence.log.start
    begins = [first for first in evidence.log.segment_starts if first <= target]
    searched = 0
    for key, end in keep.items():
        queue = evidence.queues[key]
        if queue.first < queue.end == end and queue.last_log_offset <= target:
            begins.append(queue.last_log_offset)
        elif searched < _SEARCHED_MAX:
            searched += 1
            index = min(queue.index_of(target + 1), end) - 1
            if index >= queue.first:
                begins.append(queue.unit(index).commit_log_offset)
    return max(begins)


def _new_units(queue: ConsumeQueue, end: int) -> NewUnits:
    if end <= queue.first:
        return NewUnits(queue.begin if queue.begin == queue.first > 0 else None, 0)
    if end == queue.end:
        return NewUnits(end, queue.log_end)
    last = queue.unit(end - 1)
    return NewUnits(end, last.commit_log_offset + last.size)


def _lost_its_head(evidence: Evidence, key: QueueKey, new: NewUnits) -> bool:
    """Whether a queue without trusted units seems to begin too late.

    After a power loss a new file may be missing although a later one exists.
    """
    queue, note = evidence.queues[key], evidence.newest_progress
    if new.units:
        return new.begin != queue.first
    if queue.first == 0 or note is None or not evidence.was_killed or evidence.is_same_boot:
        return False
    return key[1] not in note.queues.get(key[0], {})


def _dispatch(
    record: FoundRecord,
    head: RecordHead,
    evidence: Evidence,
    known: _Known,
    units: dict[QueueKey, NewUnits],
    damage: list[DamagedRange],
) -> None:
    """Add a record's unit to its queue, unless the queue has it."""
    key = (head.topic, head.queue_id)
    if not is_queued(head.sys_flag) or evidence.deletions.is_deleted(*key, record.offset):
        return
    new = units.get(key)
    if new is None:
        queue = evidence.queues[key] if key in evidence.seen else None
        new = units[key] = NewUnits(None, 0) if queue is None else _new_units(queue, queue.end)
    if record.offset < new.known_until:
        return
    is_next = head.queue_offset == new.end
    if not is_next and not (
        damage and new.bridge(head.queue_offset, damage, evidence.queues.get(key))
    ):
        # A queue begins with its first record. After a deletion by Apache's broker, a new topic of
        # that name begins at 0; after ours, at the begin of a file (see `deletions`).
        is_anew = head.queue_offset % evidence.units_per_file == 0 and (
            new.end is None or not 0 < head.queue_offset < new.end
        )
        is_begin = new.end is None or is_anew
        is_whole = key in known.lost or (new.end is None and head.queue_offset == 0)
        if not (is_begin and is_whole):
            raise _Gap(key, record, head.queue_offset)
        new.begin_at(head.queue_offset)
    tags_code = queue_tags_code(head.topic, head.properties, head.store_time_ms, evidence.delays_ms)
    new.add(record, head.queue_offset, tags_code)


def _was_whole(evidence: Evidence, record: FoundRecord, head: RecordHead) -> bool:
    """Whether a record is complete, including its zero bytes; see rule 5.

    A process that dies during a write leaves a prefix, so a record with its last byte is complete.
    """
    if not _may_lack_a_part(evidence.log, record, head):
        return True
    if evidence.is_same_boot and record.buffer[record.at + record.size - 1]:
        return True
    return evidence.was_durable(record) or evidence.written_behind(record.offset) is not None


def _may_lack_a_part(log: CommitLog, record: FoundRecord, head: RecordHead) -> bool:
    """Whether the zeros in the properties of a valid record may be a lost part.

    A medium loses whole sectors. It may also take a sector while the record is written into it, and
    later ones afterwards: then zeros reach the end of the sector. If they begin before the
    properties, the record is invalid, because their length is zero, too. After a write that ended
    early there are only zeros.
    """
    first, segment = log.segment_at(record.offset)
    end = record.offset + record.size - first
    last = end - 1
    if not bytes(segment.copy(last, SECTOR_SIZE - last % SECTOR_SIZE)).strip(b"\0"):
        return True
    properties = head.properties
    sector_ends = range((len(properties) - end) % SECTOR_SIZE, len(properties), SECTOR_SIZE)
    return any(properties.endswith(_LOST_PART, 0, at) for at in sector_ends)
