"""Opening a log after a stop or a crash: where does the valid part end?

Receives the segments; hands on the end of the valid log and the records that the queues may not
know; refuses to guess: a hole before data that was acknowledged is an error, not an end.
Source: Apache RocketMQ `CommitLog.recoverNormally`, `recoverAbnormally`.
"""

from collections.abc import Iterator
from itertools import zip_longest

from reliable_mq.broker_core.store.commit_log import FOLDER, CommitLog, segment_name
from reliable_mq.errors import RecordError, StoreCorrupt
from reliable_mq.wire.record import Record, blank_size_at, decode_record, record_size_at

_LOOK = 64


def scan(log: CommitLog, start: int, *, check_body: bool = True) -> Iterator[Record]:
    """Yield the valid records from `start`, which must be a record's begin, to the log's end.

    Afterwards `log.end` is where the valid part ends, and segments after it are gone.

    Raises:
        StoreCorrupt: when a segment ends early although later segments hold records. Nothing was
            changed then.
    """
    offset = start
    starts = log.segment_starts
    for first, following in zip_longest(starts, starts[1:]):
        if first + log.segment_size <= offset:
            continue
        for record in _scan_segment(log, first, offset, check_body=check_body):
            offset = record.commit_log_offset + record.size
            yield record
        if following is None or not _is_closed(log, first, offset):
            if following is not None and _holds_records(log, following):
                raise StoreCorrupt(
                    f"{FOLDER}/{segment_name(first)}: no valid record at {offset - first} (log "
                    f"offset {offset}), but later segments hold records; restore the file from a "
                    "copy"
                )
            break
        offset = following
    log.drop_segments_after(offset)
    log.reset_end(max(offset, log.start))


def _scan_segment(log: CommitLog, first: int, offset: int, *, check_body: bool) -> Iterator[Record]:
    _first, segment = log.segment_at(first)
    at = offset - first
    while at < log.segment_size:
        size = record_size_at(segment.read(at, _LOOK * 2), 0)
        if not size:
            return
        try:
            record = decode_record(segment.read(at, size), check_body=check_body)
        except RecordError:
            return
        if record.commit_log_offset != first + at:
            return
        yield record
        at += size


def _is_closed(log: CommitLog, first: int, offset: int) -> bool:
    """Whether the segment's rest is a blank, so that the log goes on in the next one."""
    _first, segment = log.segment_at(first)
    at = offset - first
    rest = log.segment_size - at
    return rest == 0 or blank_size_at(segment.read(at, 8), 0) == rest


def _holds_records(log: CommitLog, first: int) -> bool:
    _first, segment = log.segment_at(first)
    return record_size_at(segment.read(0, _LOOK * 2), 0) > 0
