"""Truncation: cuts the end of a log that its master does not have, and keeps the bytes aside.

Works on a store that is not open. The role note says where to cut, so a kill at any step is
followed by another try at the next start. The removed bytes are in `surplus/` before the log
changes. The next opening recovers the queues and the index as after a crash.
"""

import logging

import msgspec

from reliable_mq.broker_core.store import progress, timer_checkpoint, timer_log, timer_wheel
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.log_walk import LogWalk
from reliable_mq.broker_core.store.role_note import RoleNote, save_role
from reliable_mq.errors import StoreError
from reliable_mq.telemetry import broker_events

log = logging.getLogger(__name__)

FOLDER = "surplus"
_ABORT_PATH = "abort"
_PART_SIZE = 1024 * 1024


def begin_of_record(commit_log: CommitLog, offset: int) -> int:
    """Return the largest begin of a record, or end of the records, that is not behind `offset`."""
    if offset <= commit_log.start or not commit_log.segment_starts:
        return commit_log.start
    first = max(each for each in commit_log.segment_starts if each <= offset)
    begin = first
    for record in LogWalk(commit_log, first, first):
        if record.offset > offset:
            return begin
        begin = record.offset
        if record.offset + record.size <= offset:
            begin = record.offset + record.size
    return begin


def bytes_between(commit_log: CommitLog, begin: int, end: int) -> bytes:
    """Return the bytes of a log, also across the ends of segments; fewer at its end."""
    parts: list[bytes] = []
    while begin < end and (part := commit_log.read(begin, end - begin)):
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


def carry_out_truncation(disk: Disk, note: RoleNote, segment_size: int) -> RoleNote:
    """Cut the log where the note says; return the note without it.

    Raises:
        StoreError: when the log cannot be cut there. Nothing was changed then.
        OSError: when there is no room to keep the removed bytes. The log was not changed then.
    """
    cut = note.truncate_to
    if cut < 0:
        return note
    commit_log = CommitLog(disk, segment_size)
    try:
        _cut(disk, commit_log, cut)
    finally:
        commit_log.close()
    note = msgspec.structs.replace(note, truncate_to=-1)
    save_role(disk, note)
    return note


def truncate(disk: Disk, note: RoleNote, cut: int, segment_size: int) -> RoleNote:
    """Cut the log of a store that is not open; return its note.

    Raises: see `carry_out_truncation`.
    """
    commit_log = CommitLog(disk, segment_size)
    try:
        _check(commit_log, cut)
    finally:
        commit_log.close()
    note = msgspec.structs.replace(note, truncate_to=cut, is_verified=False)
    save_role(disk, note)
    return carry_out_truncation(disk, note, segment_size)


def _check(commit_log: CommitLog, cut: int) -> None:
    if not commit_log.start <= cut <= commit_log.capacity_end:
        raise StoreError(
            f"the log cannot be cut at offset {cut}: it is there from {commit_log.start} to "
            f"{commit_log.capacity_end}"
        )
    if (begin := begin_of_record(commit_log, cut)) != cut and cut != commit_log.capacity_end:
        raise StoreError(f"offset {cut} is not the begin of a record; the one before is {begin}")


def _cut(disk: Disk, commit_log: CommitLog, cut: int) -> None:
    _check(commit_log, cut)
    first = max((each for each in commit_log.segment_starts if each <= cut), default=cut)
    walk = LogWalk(commit_log, min(cut, max(first, commit_log.start)), cut)
    count = sum(1 for _record in walk)
    if walk.end > cut:
        path = f"{FOLDER}/{cut:020d}-{walk.end:020d}"
        _keep(disk, commit_log, path, cut, walk.end)
        broker_events.LOG_TRUNCATED.log(
            log, log_offset=cut, log_end=walk.end, messages=count, path=path
        )
    disk.write_text(_ABORT_PATH, "0")
    disk.remove(progress.PATH)
    for name in disk.names(timer_log.FOLDER):
        disk.remove(f"{timer_log.FOLDER}/{name}")
    for path in (timer_wheel.PATH, timer_checkpoint.PATH):
        disk.remove(path)
    commit_log.cut(cut)
    for segment in commit_log.segments_from(cut):
        segment.sync()


def _keep(disk: Disk, commit_log: CommitLog, path: str, begin: int, end: int) -> None:
    """Copy a part of the log to a file, durably."""
    disk.remove(path)
    kept = disk.open(path, end - begin)
    commit_log.reset_end(end)
    for at in range(begin, end, _PART_SIZE):
        kept.write(at - begin, (bytes_between(commit_log, at, min(at + _PART_SIZE, end)),))
    kept.sync()
    kept.close()
