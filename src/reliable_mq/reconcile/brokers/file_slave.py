"""Compares the log of a slave with the log of its master, from the files of both.

Receives two store directories, of running brokers or copies, ours or Apache's. Returns the records
that the slave lacks, those that differ, and those that only the slave has. It opens files for
reading only and takes no lock.

The log of a slave has the bytes of its master's at the same offsets. So bytes are compared, and
only a part that differs is read as records. Equal bytes cost a read of both files.

The master's files are listed before the slave's: what is in both lists, the slave had time to copy.
A record that is younger than the grace is on its way.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.reconcile.brokers.file_queues import is_offset_name
from reliable_mq.reconcile.brokers.file_store import (
    LogPartition,
    cut_to_range,
    noted_start,
    read_layout,
    read_through,
    record_context,
)
from reliable_mq.reconcile.brokers.log_columns import columns
from reliable_mq.reconcile.brokers.log_roles import DAMAGED
from reliable_mq.reconcile.brokers.log_scan import ScanEnd, record_starts
from reliable_mq.reconcile.brokers.log_schema import LOG_SCHEMA, columns_of

LACKS, DIFFERS, SURPLUS, ON_ITS_WAY = "lacks", "differs", "surplus", "on its way"
#: The columns of a listed record, behind its kind.
COLUMNS = (
    *("commit_log_offset", "size", "role", "topic", "consumer_group", "message_id"),
    *("queue_topic", "queue_id", "queue_offset", "store_time"),
)
_SCHEMA = columns_of(COLUMNS, LOG_SCHEMA)
_TIME = _SCHEMA.field("store_time").type
_RANGES_MAX = 100
_CHUNK_SIZE = 8 * 1024 * 1024


class LogRange(NamedTuple):
    """Records of one kind that follow each other in the log, `end` excluded."""

    kind: str
    begin: int
    end: int
    records: int


@dataclass
class SlaveComparison:
    """What a slave lacks.

    Attributes:
        broker: the name of both; "": it was not given.
        store: the store directory of the slave.
        master_log: the offsets at which the master's log begins and ends.
        slave_log: those of the slave's, as far as it is known to be the same.
        counts: kind -> number of records.
        sizes: kind -> bytes of these records.
        ranges: the first ranges of records, in the order of the log.
        rows: the first records that the slave lacks, that differ, or that only the slave has: their
            kind, and the values of `COLUMNS`.
    """

    broker: str
    store: str
    master_log: tuple[int, int]
    slave_log: tuple[int, int]
    counts: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    ranges: list[LogRange] = field(default_factory=list)
    rows: list[tuple[object, ...]] = field(default_factory=list)

    def add(self, kinds: Sequence[str], batch: pa.RecordBatch, rows_max: int) -> None:
        """Add the records of a batch, each with its kind; at most `rows_max` are listed."""
        begins, sizes = (batch.column(name).to_pylist() for name in COLUMNS[:2])
        for kind, begin, size in zip(kinds, begins, sizes, strict=True):
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.sizes[kind] = self.sizes.get(kind, 0) + size
            if kind != ON_ITS_WAY:
                self._add_to_ranges(kind, begin, begin + size)
        for place, kind in enumerate(kinds):
            if len(self.rows) >= rows_max:
                break
            if kind != ON_ITS_WAY:
                (row,) = batch.slice(place, 1).to_pylist()
                self.rows.append((kind, *row.values()))

    def _add_to_ranges(self, kind: str, begin: int, end: int) -> None:
        last = self.ranges[-1] if self.ranges else None
        if last is not None and (last.kind, last.end) == (kind, begin):
            self.ranges[-1] = LogRange(kind, last.begin, end, last.records + 1)
        elif len(self.ranges) < _RANGES_MAX:
            self.ranges.append(LogRange(kind, begin, end, 1))

    def flaw(self) -> str | None:
        """Return what is wrong with the slave as one clause; None: it has the log."""
        parts = [
            f"{what} {self.counts[kind]:,} record{'s' if self.counts[kind] > 1 else ''} "
            f"({self.sizes[kind]:,} bytes), {self._where(kind)}"
            for kind, what in _SAID.items()
            if self.counts.get(kind)
        ]
        return "it " + "; it ".join(parts) if parts else None

    def _where(self, kind: str) -> str:
        ranges = [each for each in self.ranges if each.kind == kind]
        if not ranges:  # behind too many ranges of another kind
            return "behind the listed ranges"
        if len(ranges) == 1 and len(self.ranges) < _RANGES_MAX:
            return f"from log offset {ranges[0].begin} to {ranges[0].end}"
        return f"the first from log offset {ranges[0].begin} to {ranges[0].end}"

    def to_json(self) -> dict[str, object]:
        """Return the comparison for the summary of a run."""
        return {
            "broker": self.broker,
            "store": self.store,
            "master_log": list(self.master_log),
            "slave_log": list(self.slave_log),
            "counts": {kind: self.counts.get(kind, 0) for kind in (*_SAID, ON_ITS_WAY)},
            "bytes": {kind: self.sizes.get(kind, 0) for kind in (*_SAID, ON_ITS_WAY)},
            "ranges": [each._asdict() for each in self.ranges],
        }


_SAID = {
    LACKS: "lacks",
    DIFFERS: "has other bytes for",
    SURPLUS: "has, and the master lacks,",
}


def compare_with_slave(
    broker: str, master: str, slave: str, young_since: datetime, rows_max: int
) -> SlaveComparison:
    """Compare the log of a slave with its master's.

    Args:
        broker: the name of both.
        master: the store directory of the master.
        slave: the store directory of the slave.
        young_since: records that the master stored since then may be on their way.
        rows_max: the most records that are listed.

    Raises:
        StoreError: when one of them is no store directory.
    """
    masters = read_layout(master)
    slaves, copy = read_layout(slave), _Segments(slave)
    found = SlaveComparison(
        *(broker, slave), (masters.log_begin, masters.sure_end), (copy.begin, slaves.sure_end)
    )
    for each in cut_to_range(masters.partitions, masters.log_begin, masters.sure_end):
        for batch in _differing(each, copy):
            found.add(list(_kinds(batch, copy, young_since)), batch, rows_max)
    # After a crash, its queues may list less than it has.
    found.slave_log = (copy.begin, max(slaves.sure_end, copy.same_end))
    original = _Segments(master)  # read again: it may have gone on
    surplus = (max(masters.sure_end, slaves.log_begin), slaves.sure_end)
    for each in cut_to_range(slaves.partitions, *surplus):
        for batch in _differing(each, original):
            found.add([SURPLUS] * batch.num_rows, batch, rows_max)
    return found


def _kinds(batch: pa.RecordBatch, copy: "_Segments", young_since: datetime) -> Iterator[str]:
    """Yield the kind of each record of the master that a slave does not have as it is."""
    is_young = pc.greater_equal(batch.column("store_time"), pa.scalar(young_since, _TIME))
    places = (batch.column(name).to_pylist() for name in COLUMNS[:2])
    for young, begin, size in zip(is_young.to_pylist(), *places, strict=True):
        if young:  # perhaps written at this moment
            yield ON_ITS_WAY
        else:
            yield LACKS if copy.read(begin, size) == bytes(size) else DIFFERS


def _differing(partition: LogPartition, other: "_Segments") -> Iterator[pa.RecordBatch]:
    """Yield the records of a partition that the other log does not have at their offsets.

    A damaged part of the partition is left out: the run tells of it.
    """
    if _is_same(partition, other):
        return
    read = partial(_differing_batch, other=other, partition=partition)
    for batch in read_through(partition, _SCHEMA, read):
        found = batch.filter(pc.not_equal(batch.column("role"), DAMAGED))
        if found.num_rows:
            yield found


def _is_same(partition: LogPartition, other: "_Segments") -> bool:
    """Return whether the other log has all bytes of a partition; this is fast."""
    if not partition.path:
        return False
    with suppress(FileNotFoundError), Path(partition.path).open("rb") as file:
        file.seek(partition.start - partition.segment)
        for at in range(partition.start, partition.stop, _CHUNK_SIZE):
            chunk = file.read(min(_CHUNK_SIZE, partition.stop - at))
            if other.read(at, len(chunk)) != chunk:
                return False
        other.same_end = max(other.same_end, partition.stop)
        return True
    return False


def _differing_batch(
    chunk: bytes, at: int, *, other: "_Segments", partition: LogPartition
) -> tuple[pa.RecordBatch, int, ScanEnd]:
    _, used, end = record_starts(chunk)
    copy = other.read(at, used)
    if copy == chunk[:used]:
        other.same_end = max(other.same_end, at + used)
        return pa.RecordBatch.from_pylist([], schema=_SCHEMA), used, end
    context = record_context(partition)
    batch, used, end = columns(chunk, at, _SCHEMA, context=context, check_body=False)
    begins = batch.column("commit_log_offset").to_pylist()
    sizes = batch.column("size").to_pylist()
    spans = [(b - at, b - at + size) for b, size in zip(begins, sizes, strict=True)]
    same_ends = (at + high for low, high in spans if copy[low:high] == chunk[low:high])
    other.same_end = max(same_ends, default=0) or other.same_end
    is_other = pa.array([copy[low:high] != chunk[low:high] for low, high in spans], pa.bool_())
    return batch.filter(is_other), used, end


class _Segments:
    """The files of a log, as they are now."""

    def __init__(self, store: str) -> None:
        root = Path(store)
        log = root / "commitlog"
        names = sorted(path.name for path in log.iterdir()) if log.is_dir() else []
        self._files = [(int(name), log / name) for name in names if is_offset_name(name)]
        noted = noted_start(root)
        first = self._files[0][0] if self._files else 0
        self.same_end = 0  # of the last record that is the same here
        self.begin = first if noted is None else min(first, noted)

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes at a log offset, zeros where there are none."""
        parts: list[bytes] = []
        at, end = offset, offset + size
        limits = [*(begin for begin, _ in self._files[1:]), end]
        for (begin, path), limit in zip(self._files, limits, strict=False):
            stop = min(end, max(limit, begin))
            if at < begin < end:
                parts.append(bytes(begin - at))
                at = begin
            if begin <= at < stop:
                parts.append(_read_at(path, at - begin, stop - at))
                at = stop
        return b"".join(parts) + bytes(end - at)


def _read_at(path: Path, at: int, size: int) -> bytes:
    """Return `size` bytes of a file, zeros behind its end or if retention has removed it."""
    data = b""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(at)
        data = file.read(size)
    return data + bytes(size - len(data))
