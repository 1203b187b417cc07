"""The reader of a store directory: its commit log in partitions, and missing files.

Receives the path of a store directory, of a running broker or a copy, ours or Apache's. Returns the
begin and the known end of its commit log, partitions between records, the records, and the first
offset that each queue still has. It opens files for reading only and takes no lock, so it does not
disturb a broker. `file_queues` reads the consume queues.

The bundled broker notes from where on its segments must be there. It refuses a store that lacks a
noted segment; reconciliation reads on and names what is missing.

Source: Apache RocketMQ `MappedFileQueue`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from reliable_mq.decodable import decodable
from reliable_mq.errors import InvariantBroken, RecordError, StoreError
from reliable_mq.limits import RECORD_SIZE_MAX
from reliable_mq.reconcile.brokers.file_listing import Listed, Listing
from reliable_mq.reconcile.brokers.file_queues import (
    OFFSETS,
    DeliveryTimes,
    QueueFiles,
    has_progress,
    is_offset_name,
    queues_of,
    read_groups,
)
from reliable_mq.reconcile.brokers.log_columns import columns
from reliable_mq.reconcile.brokers.log_roles import RETRY_PREFIX, RecordContext, pop_retries
from reliable_mq.reconcile.brokers.log_scan import (
    HEAD_SIZE_MAX,
    ScanEnd,
    damaged,
    find_record,
    record_starts,
    store_time_in,
)
from reliable_mq.reconcile.brokers.log_schema import BODY, PROPERTIES, columns_of, log_batch
from reliable_mq.wire.record import decode_record

_MARKS_OF_A_STORE = ("commitlog", "lock", "abort", "checkpoint", "config")
_CHUNK_SIZE = 8 * 1024 * 1024
_HEAD_OVERLAP = 64  # so that the second chunk contains a head that crosses the border
SPLIT_SIZE = 64 * 1024 * 1024

if not RECORD_SIZE_MAX < _CHUNK_SIZE <= SPLIT_SIZE:
    raise InvariantBroken("a chunk holds at least one record, a partition at least one chunk")


@dataclass(frozen=True)
class LogPartition:
    """A part of one segment: the records that begin in the log offsets `start` … `stop` - 1.

    `start` and `stop` are between records. The last partition of a segment stops at the segment's
    end. `path` is empty if the segment is missing.

    `sure_end`: the log offset up to which the consume queues list records. Bytes before it that are
    no record are damage; bytes after it are the end of the log. `pop_retries`: as in
    `RecordContext`, as (retry topic, group, original topic). `is_ours`, `late`: see `Listing`.
    """

    path: str
    segment: int
    start: int
    stop: int
    sure_end: int
    pop_retries: tuple[tuple[str, str, str], ...] = ()
    is_ours: bool = False
    late: tuple[Listed, ...] = ()


@dataclass(frozen=True)
class StoreLayout:
    """The contents of a store directory.

    Attributes:
        log_begin: the log offset at which the log begins.
        sure_end: the log offset up to which the consume queues list records.
        partitions: the parts of the log.
        queue_begins: (topic, queue id) -> the first message that the queue still has.
        missing: one clause for each missing file or part. Damage inside the log is not included:
            it is found when the log is read.
        newest_ms: store time of the last record that a queue lists.
        oldest_ms: store time of the first record of the log. Both are milliseconds since the epoch
            by the broker's clock. None: there is no record, or it is unreadable.
    """

    log_begin: int
    sure_end: int
    partitions: tuple[LogPartition, ...]
    queue_begins: dict[tuple[str, int], int]
    missing: tuple[str, ...] = ()
    newest_ms: int | None = None
    oldest_ms: int | None = None


@retry(retry=retry_if_exception_type(FileNotFoundError), stop=stop_after_attempt(10), reraise=True)
def read_layout(store: str, split_size: int = SPLIT_SIZE) -> StoreLayout:
    """Find the segments of a store and cut them into partitions.

    If a broker's retention removes files meanwhile, it starts again.

    Args:
        store: the store directory (`storePathRootDir`).
        split_size: approximate bytes of one partition. Default 64 MiB.

    Raises:
        StoreError: when `store` is not a store directory.
    """
    root = Path(store)
    log = root / "commitlog"
    if not root.is_dir():
        why = "it is a file" if root.exists() else "it does not exist"
        raise StoreError(f"{store} is not a store directory: {why}")
    if not any((root / mark).exists() for mark in _MARKS_OF_A_STORE):
        raise StoreError(f"{store} is not a store directory: it has no folder commitlog")
    files = sorted(log.iterdir()) if log.is_dir() else []  # the first message makes the folder
    segments = [path for path in files if is_offset_name(path.name)]
    if files and not segments:
        raise StoreError(f"{log} has no segment, but {files[0].name}")
    queues = list(queues_of(root))
    newest, sure_end = max((queue.last() for queue in queues), default=(0, 0))
    log_begin = int(segments[0].name) if segments else 0
    known_begin = noted_start(root) if segments else None
    log_begin = log_begin if known_begin is None else min(log_begin, known_begin)
    is_ours = has_note(root)
    begins, late = {}, []
    for queue in queues:
        found = queue.first_at_or_after(log_begin)
        low, high = queue.bounds()
        begins[queue.topic, queue.queue_id] = found[0] if found else high
        # If a queue begins with its first unit, an earlier queue of a deleted topic may have had
        # records before it. The bundled broker keeps counting in the queues of a deleted topic. So
        # there, a queue that begins at 0 lists all its records.
        if found is not None and found[0] == low and (low > 0 or not is_ours):
            late.append((queue.topic, queue.queue_id, found[1]))
    sample = LogPartition(
        *("", log_begin, log_begin, log_begin, sure_end),
        pop_retries=_retries(store, queues),
        is_ours=is_ours,
        late=tuple(late),
    )
    partitions = _partitions(segments, queues, sample, split_size)
    missing = _missing(store, queues, segments, sure_end)
    newest_ms = _store_time(segments, newest) if sure_end else None
    oldest_ms = _store_time(segments, log_begin)
    return StoreLayout(log_begin, sure_end, partitions, begins, missing, newest_ms, oldest_ms)


def _store_time(segments: list[Path], log_offset: int) -> int | None:
    """Return the store time of the record at a log offset. None: no record is there."""
    for path in reversed(segments):
        if int(path.name) <= log_offset:
            with path.open("rb") as file:
                return store_time_in(_read(file, log_offset - int(path.name), HEAD_SIZE_MAX))
    return None


def _retries(store: str, queues: list[QueueFiles]) -> tuple[tuple[str, str, str], ...]:
    topics = {queue.topic for queue in queues}
    if not any(topic.startswith(RETRY_PREFIX) for topic in topics):
        return ()
    found = pop_retries(topics, read_groups(store))
    return tuple((name, group, topic) for name, (group, topic) in found.items())


def _missing(
    store: str, queues: list[QueueFiles], segments: list[Path], sure_end: int
) -> tuple[str, ...]:
    if not any(_has_records(path) for path in segments):  # a new segment file may be empty
        listed = f"its consume queues list messages up to log offset {sure_end:,}, and commitlog"
        return (f"{listed} holds none: is storePathCommitLog elsewhere?",) if sure_end else ()
    found = [flaw for queue in queues if (flaw := queue.flaw()) is not None]
    if not queues:
        found.append(
            "it has no consume queues, which show where the log must end; a running broker has "
            "them 10 seconds after its first message"
        )
    if not has_progress(store, queues):
        found.append(f"it has no config/{OFFSETS}, which has the offsets of consumer groups")
    return tuple(found)


def _has_records(segment: Path) -> bool:
    with segment.open("rb") as file:
        return store_time_in(file.read(HEAD_SIZE_MAX)) is not None


def _partitions(
    segments: list[Path],
    queues: list[QueueFiles],
    sample: LogPartition,
    split_size: int,
) -> tuple[LogPartition, ...]:
    """Cut a log into partitions like `sample`, which is empty and at the beginning of the log.

    A missing segment becomes a partition without a path.
    """
    sure_end = sample.sure_end
    widest = max(queues, key=lambda queue: queue.bounds()[1] - queue.bounds()[0], default=None)
    partitions: list[LogPartition] = []
    expected = sample.start
    for path in segments:
        base, size = int(path.name), path.stat().st_size
        if expected < base:
            partitions.append(LogPartition("", expected, expected, base, sure_end))
        expected = base + size
        borders = _borders(widest, base, min(base + size, sure_end), split_size)
        stops = (*borders[1:], base + size)
        partitions += [
            replace(sample, path=str(path), segment=base, start=start, stop=stop)
            for start, stop in zip(borders, stops, strict=True)
        ]
    if expected < sure_end:
        partitions.append(LogPartition("", expected, expected, sure_end, sure_end))
    return tuple(partitions)


def cut_to_range(
    partitions: Sequence[LogPartition], low: int, high: int
) -> tuple[LogPartition, ...]:
    """Cut partitions to the log range `low` … `high` - 1. Both offsets are between records."""
    cut = (
        replace(each, start=max(each.start, low), stop=min(each.stop, high)) for each in partitions
    )
    return tuple(each for each in cut if each.start < each.stop)


def _borders(queue: QueueFiles | None, begin: int, end: int, split_size: int) -> list[int]:
    """Return starts of records in `begin` … `end`, about `split_size` bytes apart."""
    borders = [begin]
    while queue is not None and borders[-1] + split_size < end:
        found = queue.first_at_or_after(borders[-1] + split_size)
        if found is None or found[1] >= end:
            break
        borders.append(found[1])
    return borders


def read_batches(
    partition: LogPartition, schema: pa.Schema, *, check_body: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a partition as batches, each of at most 8 MiB of the log.

    Args:
        partition: the partition.
        schema: the wanted columns, from `log_schema.RECORD_SCHEMA`.
        check_body: whether `content_crc` is computed if it is wanted. Otherwise it is null.
    """
    read = partial(columns, schema=schema, context=record_context(partition), check_body=check_body)
    return read_through(partition, schema, read)


def record_context(partition: LogPartition) -> RecordContext:
    """Return the settings and names of the broker of a partition."""
    store = Path(partition.path).parent.parent
    retries = {name: (group, topic) for name, group, topic in partition.pop_retries}
    listing = Listing(store, partition.sure_end, is_ours=partition.is_ours, late=partition.late)
    times = DeliveryTimes(store)
    return RecordContext(pop_retries=retries, delivery_ms=times, listed_from=listing)


def _damage_batch(schema: pa.Schema, at: int, size: int) -> pa.RecordBatch:
    names = [name for name in schema.names if name not in (BODY, PROPERTIES)]
    known = log_batch([damaged(at, size)], columns_of(names, schema))
    values = [
        known.column(field.name) if field.name in names else pa.nulls(1, field.type)
        for field in schema
    ]
    return pa.record_batch(values, schema=schema)


def read_through(
    partition: LogPartition,
    schema: pa.Schema,
    read: Callable[[bytes, int], tuple[pa.RecordBatch, int, ScanEnd]],
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of `read` for a whole partition, and batches for damaged parts."""
    if not partition.path:
        yield _damage_batch(schema, partition.start, partition.stop - partition.start)
        return
    try:
        segment = Path(partition.path).open("rb")  # noqa: SIM115 - closed two lines below
    except FileNotFoundError:
        if _has_expired(partition):  # the judge asks again later where the queues begin
            return
        raise
    with segment as file:
        at = partition.start
        while at < partition.stop:
            chunk = _read(file, at - partition.segment, min(_CHUNK_SIZE, partition.stop - at))
            if at + len(chunk) > partition.sure_end:
                chunk = _without_half(chunk, partition.sure_end - at)
            found, used, end = read(chunk, at)
            if found.num_rows:
                yield found
            at += used
            if end is ScanEnd.BLANK:
                return
            if end is ScanEnd.INVALID or used == 0:
                good = _next_record(file, partition, at)
                damage_end = min(good or partition.stop, partition.sure_end)
                if at < damage_end:
                    yield _damage_batch(schema, at, damage_end - at)
                if good is None:
                    return
                at = good


def _without_half(chunk: bytes, sure: int) -> bytes:
    """Return a chunk without its last record, if a running broker may still be writing it.

    A broker writes a record in several parts, and a reader may see only the first ones. Such a
    record has its size, but zeros instead of its body or properties. Records before `sure` are
    complete, because the queues list them.
    """
    starts, _, end = record_starts(chunk)
    if end is not ScanEnd.INVALID or not starts or starts[-1] < sure:
        return chunk
    try:
        is_half = b"\0" in decode_record(chunk, starts[-1], check_body=True).properties
    except RecordError:
        is_half = True
    return chunk[: starts[-1]] if is_half else chunk


def _has_expired(partition: LogPartition) -> bool:
    """Return whether retention removed a segment: neither it nor an older one exists."""
    names = (path.name for path in Path(partition.path).parent.iterdir())
    return min(map(int, filter(is_offset_name, names)), default=-1) > partition.segment


def _next_record(file: BinaryIO, partition: LogPartition, damage: int) -> int | None:
    """Return the log offset of the first record after `damage` and before `sure_end`, or None."""
    end = min(partition.stop, partition.sure_end)
    at = damage + 1
    while at < end:
        chunk = _read(file, at - partition.segment, min(_CHUNK_SIZE, partition.stop - at))
        found = find_record(chunk, at)
        if found is not None:
            return at + found if at + found < end else None
        if len(chunk) < _CHUNK_SIZE:
            return None
        at += len(chunk) - _HEAD_OVERLAP
    return None


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


_NOTE = "config/storeProgress.json"
_CHECKPOINT = "checkpoint"
_TIME_SIZE = 8


@decodable
class _Note(msgspec.Struct, rename="camel"):
    log_start: int = 0
    last_record: int = -1
    last_time_ms: int = 0


def has_note(store: Path) -> bool:
    """Return whether the bundled broker wrote to this store."""
    return (store / _NOTE).exists()


def noted_start(store: Path) -> int | None:
    """Return the log offset at which, by the note, the log begins; None: unknown.

    Retention writes the note before it removes a segment. So list the segments first, and call this
    after. The note is not current if another broker wrote to the store since: then the checkpoint
    is newer. Source: Apache RocketMQ `StoreCheckpoint` for its first eight bytes.
    """
    with suppress(OSError, msgspec.MsgspecError):
        with (store / _CHECKPOINT).open("rb") as file:
            stored_ms = int.from_bytes(file.read(_TIME_SIZE))
        note = msgspec.json.decode((store / _NOTE).read_bytes(), type=_Note)
        if note.last_record >= 0 and stored_ms <= note.last_time_ms:
            return note.log_start
    return None
