"""Reading the record at a place that a unit or the index names; damage is skipped.

Receives a log and places in it. Returns sound records only. An unreadable record is omitted, and
logged once. Plain pulls do not use this module, because it checks bodies.
"""

import logging

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.consume_queue import QueueUnit
from reliable_mq.broker_core.store.log_walk import FoundRecord, damage_end, record_at
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.record import RECORD_SIZE_MIN, Record, decode_record
from reliable_mq.wire.record_scan import are_valid

log = logging.getLogger(__name__)


def sound_record(commit_log: CommitLog, offset: int, size: int) -> bytes | None:
    """Return the stored record of a unit; None when it is damaged or expired.

    Args:
        commit_log: the log.
        offset: log offset of the record, from the unit.
        size: size of the record, from the unit.
    """
    if RECORD_SIZE_MIN <= size <= FRAME_SIZE_MAX:
        data = commit_log.read(offset, size)
        if are_valid(data, (offset,), (size,)):
            return data
    if offset >= commit_log.written:
        if commit_log.damage.note_damage(offset, offset + max(size, 1)):
            broker_events.QUEUE_UNIT_BEYOND_LOG.log(log, log_offset=offset, log_end=commit_log.end)
    else:
        _name(commit_log, offset)
    return None


def _name(commit_log: CommitLog, offset: int) -> None:
    is_kept = commit_log.start <= offset < commit_log.written
    if is_kept and not commit_log.damage.covers(offset):
        commit_log.log_damage(offset, damage_end(commit_log, offset))


def read_unit(commit_log: CommitLog, unit: QueueUnit) -> Record | None:
    """Return the message of a unit; None when it is damaged or expired."""
    data = sound_record(commit_log, unit.commit_log_offset, unit.size)
    return decode_record(data) if data else None


def read_listed(commit_log: CommitLog, offset: int) -> Record | None:
    """Return the message that the index lists at a log offset; None when damaged or expired."""
    found = find_listed(commit_log, offset)
    return decode_record(found.buffer) if found else None


def find_listed(commit_log: CommitLog, offset: int) -> FoundRecord | None:
    """Return the place and the bytes of the same message, not decoded."""
    found = record_at(commit_log, offset)
    if found is None:
        _name(commit_log, offset)
    return found
