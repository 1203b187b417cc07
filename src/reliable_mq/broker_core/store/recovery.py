"""Opening a store after a stop or a crash: where the log ends, and what the queues lack.

Receives log, queues, checkpoint and note as they lie on the disk; hands on a plan; refuses to
change anything while it looks, and to guess. `RecoveryPlan.carry_out` changes the files.

Rule 1. The log ends at the first place where no valid record is. What stands behind it goes.
Rule 2. Except when a valid record stands behind it that was durable: then the bytes between were
    too, and something destroyed them. The log goes on behind such damage; it is named, nothing in
    it is changed, and what it held keeps its numbers in the queues.
Rule 3. Damage that goes on to the end of its segment, the blank included, is no damaged record but
    a damaged file: the store is refused, nothing is changed.
Rule 4. A system that lost its power may have written the last bytes in any order, so that a valid
    record behind a hole proves nothing. It proves damage when the store was closed, when the
    machine runs since the store was opened, or when the note, the checkpoint or, with SYNC_FLUSH,
    a queue knows it.
Rule 5. A record's checksum does not cover its properties. In a record that is not known to have
    been written whole, zeros among them that a medium can leave are a part that was lost: the log
    ends before it. That is a whole sector of zeros, or the record's end and all behind it in its
    sector. Any other zero byte is what the client sent.
Rule 6. Of the queues only what was synced is believed; the rest is built from the log again. A
    queue that lacks units which the note knows, or that the log goes on without, is built again
    from the first record.
Rule 7. Of a log that is known to be whole only the newest part is read again: bit rot in older
    segments is named by the first who reads it, not by a start that takes minutes.

Apache RocketMQ's `CommitLog.recoverNormally` and `recoverAbnormally` know rules 1 and 6 (by
segment), and cut the log where it is damaged: what was acknowledged behind it is gone.
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
from reliable_mq.broker_core.store.progress import QueueExtent, StoreProgress
from reliable_mq.errors import StoreCorrupt
from reliable_mq.wire.record_scan import RecordHead, head_at

say = logging.getLogger(__name__)

SECTOR_SIZE = 512  # the least that a medium writes or loses
VERIFIED_SIZE = 256 * 1024 * 1024  # how much of a log that is known to be whole is read again


class RecoveryPlan(msgspec.Struct, kw_only=True):
    """What is to be done, and what was found.

    `queue_ends` are the queues that stay, and up to which message; the others begin anew.
    `damage` lies before `log_end`, where something destroyed records.
    `torn` says that valid records lie behind the end, which nothing proves to have been durable.
    `lost_from` is where the log was known to reach when it now ends before (-1: it does not).
    """

    log_end: int
    verified_from: int
    damage: list[DamagedRange]
    last_record: FoundRecord | None = None
    queue_ends: dict[QueueKey, int]
    units: dict[QueueKey, NewUnits]
    torn: bool
    lost_from: int = -1

    def tell(self, log: CommitLog) -> None:
        """Say in the process's log what is not as it should be."""
        for stretch in self.damage:
            log.name_damage(*stretch)
        if self.torn:
            say.warning(
                "the log ends at %d, where a record is torn: those behind it were not known to be "
                "on the medium when the machine stopped, and go",
                self.log_end,
            )
        if self.lost_from >= 0:
            say.warning(
                "the log ends at %d but was known up to %d: acknowledged messages are missing; "
                "reconciliation names them",
                self.log_end,
                self.lost_from,
            )

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
            elif key not in self.queue_ends:
                queue.begin_anew(queue.begin)


class _Known(NamedTuple):
    """Up to where log and queues are known to agree, and the queues that must begin anew."""

    log_end: int
    is_proven: bool  # by the note; else by the checkpoint's time, to a segment's start
    lost: frozenset[QueueKey]
    queue_ends: Mapping[QueueKey, int] | None = None  # of all queues, where the note knows them

    def end_of(self, key: QueueKey, queue: ConsumeQueue) -> int:
        """Return up to which message a queue and the known log agree.

        What the queue has beyond the note, for a part of the log that the note knows, is of a log
        that was cut: it was taken out, and the power failed before that was on the medium.
        """
        end = queue.index_of(self.log_end)
        if self.queue_ends is None:
            return end
        return max(queue.first, min(end, self.queue_ends.get(key, 0)))


class _Gap(Exception):
    """A record does not follow what its queue holds."""

    def __init__(self, key: QueueKey, record: FoundRecord, queue_offset: int) -> None:
        super().__init__(key)
        self.key = key
        self.record = record
        self.queue_offset = queue_offset


def plan(evidence: Evidence) -> RecoveryPlan:
    """Return what has to be done before the store can be used.

    Raises:
        StoreCorrupt: when a segment is missing or damaged to its end; names file and offset.
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
                if queue is None or not _holds(queue, noted, log.start, note.log_start):
                    lost.add((topic, queue_id))
        noted_ends = {
            (topic, queue_id): noted.end
            for topic, ends in note.queues.items()
            for queue_id, noted in ends.items()
        }
        return _Known(note.log_end, True, frozenset(lost), noted_ends)
    if not evidence.was_killed:
        known = [queue.log_end for queue in queues.values() if queue.is_contiguous]
        return _Known(max(known, default=log.start), True, frozenset(lost))
    if evidence.newest_progress:  # its last record is damaged, but it knows which queues there were
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


def _bears_out(log: CommitLog, note: StoreProgress) -> bool:
    """Whether the log still holds the last record that the note knows."""
    if note.last_record < 0:
        return note.log_end == log.start
    record = record_at(log, note.last_record)
    return (
        record is not None
        and record.offset + record.size == note.log_end
        and store_time_ms(record) == note.last_time_ms
    )


def _holds(queue: ConsumeQueue, noted: QueueExtent, log_start: int, noted_start: int) -> bool:
    """Whether a queue has all units that the note knows, save those that expired with the log."""
    if not queue.is_contiguous or queue.end < noted.end:
        return False
    if (
        # A queue is trimmed after it is noted that the log begins later: then what is left of it
        # begins before the log, or nothing is left.
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
    log, queues = evidence.log, evidence.queues
    keep = {
        key: known.end_of(key, queue) if evidence.was_killed else queue.end
        for key, queue in queues.items()
        if key not in known.lost
    }
    dispatch_from = log.start if known.lost else min(known.log_end, log.capacity_end)
    verified_from = min(dispatch_from, _verified_from(evidence, known, keep))
    units = {
        key: _new_units(queues[key], keep[key]) if key in keep else NewUnits(None, log.start)
        for key in {*queues, *known.lost}
    }
    damage: list[DamagedRange] = []
    walk = LogWalk(log, verified_from, dispatch_from)
    while True:
        for record in walk:
            head = head_at(record.buffer, record.at)
            if b"\0" in head.properties and not _was_whole(evidence, record, head):
                break
            _dispatch(record, head, evidence, known, units, damage)
        goes_on_at = evidence.goes_on_at(walk.end)
        if goes_on_at < 0:
            break
        damage.append(DamagedRange(walk.end, goes_on_at))
        walk.end = goes_on_at
    for key, queue in queues.items():
        units[key].keep_damaged(damage, queue)
    for key in [key for key in keep if _lost_its_head(evidence, key, keep[key], units[key])]:
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
        return NewUnits(queue.begin if queue.begin == queue.first > 0 else None, 0)
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
    record: FoundRecord,
    head: RecordHead,
    evidence: Evidence,
    known: _Known,
    units: dict[QueueKey, NewUnits],
    damage: list[DamagedRange],
) -> None:
    """Add a record's unit to its queue, unless the queue knows it."""
    key = (head.topic, head.queue_id)
    if not is_queued(head.sys_flag) or evidence.deletions.is_deleted(*key, record.offset):
        return
    new = units.get(key)
    if new is None:
        new = units[key] = NewUnits(None, 0)
    if record.offset < new.known_until:
        return
    is_next = head.queue_offset == new.end
    if not is_next and not (
        damage and new.bridge(head.queue_offset, damage, evidence.queues.get(key))
    ):
        # A queue begins with its first record. That of a topic made anew begins at 0 where Apache's
        # broker deleted the topic, and at the begin of a file where ours did (see `deletions`).
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
    """Whether a record is what was written, zero bytes and all; see rule 5.

    A process that dies within a write leaves its beginning: what has its last byte is whole.
    """
    if not _may_lack_a_part(evidence.log, record, head):
        return True
    if evidence.is_same_boot and record.buffer[record.at + record.size - 1]:
        return True
    return evidence.was_durable(record) or evidence.written_behind(record.offset) is not None


def _may_lack_a_part(log: CommitLog, record: FoundRecord, head: RecordHead) -> bool:
    """Whether zeros among the properties of a valid record are such as a medium leaves.

    Sectors are lost whole; pages are several of them. A lost sector that the properties share with
    what stands before them makes the record invalid: their length is zero in it, too. A write that
    ended early has nothing behind it.
    """
    first, segment = log.segment_at(record.offset)
    end = record.offset + record.size - first
    begin = (end - len(head.properties)) // SECTOR_SIZE * SECTOR_SIZE
    sectors = bytes(segment.copy(begin, (end // SECTOR_SIZE + 1) * SECTOR_SIZE - begin))
    end -= begin
    lacks_its_end = not sectors[end - 1 :].strip(b"\0")
    return lacks_its_end or any(
        not sectors[at : at + SECTOR_SIZE].strip(b"\0") for at in range(0, end, SECTOR_SIZE)
    )
