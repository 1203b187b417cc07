"""The log as it stands, read by the format alone: what a broker wrote, and what survived."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from reliable_mq.broker_core.store.commit_log import CommitLog, LogBatch
from reliable_mq.testing.memory_disk import MemoryFile
from reliable_mq.wire.record import Record, blank_size_at, decode_record, record_size_at


def records_of(batch: LogBatch) -> Iterator[Record]:
    """Yield the records of a batch; each must say of itself where it is."""
    for write in batch.writes:
        data = b"".join(write.parts)
        assert isinstance(write.segment, MemoryFile)
        first = int(PurePosixPath(write.segment.path).name)
        at = 0
        while at < len(data):
            blank = blank_size_at(data, at)
            if blank:
                at = len(data)
                continue
            record = decode_record(data, at)
            assert record.commit_log_offset == first + write.at + at, "a record knows its place"
            yield record
            at += record.size


def survivors(log: CommitLog) -> Iterator[Record]:
    """Yield the records of a log that was opened."""
    size = log.segment_size
    for first in log.segment_starts:
        segment = log.read(first, size)
        at = 0
        end = min(size, log.end - first)
        while at < end:
            if blank_size_at(segment, at):
                break
            assert record_size_at(segment, at), f"no record at {first + at}, the end is {log.end}"
            record = decode_record(segment, at, check_body=True)
            assert record.commit_log_offset == first + at, "a record knows its place"
            yield record
            at += record.size
