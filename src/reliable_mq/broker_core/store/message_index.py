"""The index: which messages bear a key, in files that are built from the log.

Receives the log as far as it is visible; hands on log offsets for a key; refuses to know records'
bodies. It runs behind the dispatch, a slice at a time, and reads the log itself: a send costs it
nothing, and a rebuild after a crash is the same walk. What it lacks it knows by its last entry.

A message is listed under its unique key, each of its keys, and its tag; one that was rolled back
is not. Source: Apache RocketMQ 5.4.0 `IndexService`.
"""

import logging
import struct
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.index_file import Entry, IndexFile, file_size
from reliable_mq.broker_core.store.log_walk import next_record
from reliable_mq.errors import RecordError, StoreError
from reliable_mq.wire.java_hash import KeyHashes, index_hash
from reliable_mq.wire.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from reliable_mq.wire.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, blank_size_at
from reliable_mq.wire.record_scan import RecordHead, claimed_size_at, head_at

log = logging.getLogger(__name__)

FOLDER = "index"
SLICE_RECORDS = 64
_CHUNK = 256 * 1024
_UNIQ_KEY = f"{UNIQ_KEY}\x01".encode()
_KEYS = f"{KEYS}\x01".encode()
_TAGS = f"{TAGS}\x01".encode()
_END = 0x02
_OFFSETS_MAX = 64  # Apache's maxMsgsNumBatch


class IndexSizes(NamedTuple):
    """Slots and entries of one file: Apache's maxHashSlotNum and maxIndexNum."""

    slots: int
    entries: int


class Selected(NamedTuple):
    """Log offsets, oldest first, and how far the index reaches: record and store time (ms)."""

    offsets: list[int]
    end_offset: int
    end_time_ms: int


class MessageIndex:
    """The index files of a store, over its log.

    Invariant I2: `indexed` never decreases; every record before it is listed, as long as its file
    is kept.
    """

    def __init__(self, disk: Disk, commit_log: CommitLog, sizes: IndexSizes) -> None:
        self._disk = disk
        self._log = commit_log
        self._sizes = sizes
        self._files: dict[str, IndexFile] = {}
        self.indexed = 0

    def open(self, *, is_whole: bool, was_killed: bool, safe_time_ms: int) -> None:
        """Open the files that are there; those that cannot be trusted go, the log has it all.

        Args:
            is_whole: whether all that was written is there, synced or not.
            was_killed: whether the last `put` may have been cut short.
            safe_time_ms: files that end up to this time are on the medium (the checkpoint's).
        """
        size = file_size(*self._sizes)
        kept_end = 0
        for name in self._disk.names(FOLDER):
            path = f"{FOLDER}/{name}"
            if not name.isdecimal() or self._disk.size_of(path) != size:
                log.warning("%s: no index file of this size, it is left alone", path)
                continue
            file = IndexFile(self._disk.open(path, size), *self._sizes)
            is_safe = is_whole or file.end_time_ms <= safe_time_ms
            if not is_safe or not kept_end <= file.last_offset < self._log.end:
                file.close()
                self._disk.remove(path)
                continue
            if was_killed:
                file.mend()
            kept_end = file.last_offset
            self._files[name] = file
        self.indexed = max(self._log.start, self._end_of_record(kept_end))

    def _end_of_record(self, offset: int) -> int:
        if not self._files or offset < self._log.start:
            return self._log.start
        first, segment = self._log.segment_at(offset)
        head = memoryview(segment.copy(offset - first, _HEAD_SIZE))
        return offset + claimed_size_at(head, 0, offset)

    def advance(self, until: int, now_ms: int, records_max: int = SLICE_RECORDS) -> int:
        """List the next records before log offset `until`; return how many were read.

        Raises:
            OSError, StoreError: when the disk fails, for want of room mostly. `indexed` stays
                then, and the next call tries again.
        """
        indexed = max(self.indexed, self._log.start)
        entries: list[Entry] = []
        count = 0
        for end, head, offset in _records(self._log, indexed, until):
            indexed = end
            if head is not None:
                _add_entries(head, offset, entries)
                count += 1
            if count == records_max:
                break
        self._put(entries, now_ms)
        self.indexed = indexed
        return count

    def _put(self, entries: list[Entry], now_ms: int) -> None:
        while entries:
            newest = next(reversed(self._files.values()), None)
            if newest is None or newest.is_full:
                newest = self._begin_file(now_ms)
            entries = entries[newest.put(entries) :]

    def _begin_file(self, now_ms: int) -> IndexFile:
        name = _file_name(now_ms)
        if self._files:
            name = max(name, f"{int(max(self._files)) + 1:017d}")
        while self._disk.size_of(f"{FOLDER}/{name}") > 0:  # one of another size is left alone
            name = f"{int(name) + 1:017d}"
        path = f"{FOLDER}/{name}"
        try:
            file = IndexFile(self._disk.open(path, file_size(*self._sizes)), *self._sizes)
        except (OSError, StoreError):
            self._disk.remove(path)
            raise
        self._files[name] = file
        return file

    def select(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, kind: str = ""
    ) -> Selected:
        """Return where messages with a key are: the newest `count_max`, in the order of the log.

        Messages whose key has the same hash are among them. Times in milliseconds, both included.

        Args:
            topic: where the messages are stored.
            key: a unique key or a key, or a tag when `kind` is "T".
            count_max: how many at most; never more than 64.
            begin_ms: stored at this time or later.
            end_ms: stored at this time or earlier.
            kind: what the key is; Apache 5.4.0 knows "U", "K" and "T".
        """
        key_hash = index_hash(topic, f"T#{key}" if kind == "T" else key)
        count_max = min(count_max, _OFFSETS_MAX)
        files = list(reversed(self._files.values()))
        offsets: list[int] = []
        for file in files:
            if file.has_time(begin_ms, end_ms):
                for offset in file.select(key_hash, begin_ms, end_ms):
                    if len(offsets) >= count_max:
                        break
                    offsets.append(offset)
            if file.begin_time_ms < begin_ms or len(offsets) >= count_max:
                break
        end = (files[0].end_offset, files[0].end_time_ms) if files else (0, 0)
        return Selected(sorted(offsets), *end)

    def take_full(self) -> list[IndexFile]:
        """Return the full files that are not on the medium yet."""
        return [file for file in self._files.values() if file.is_full and not file.is_synced]

    def take_expired(self, log_start: int) -> list[tuple[IndexFile, str]]:
        """Forget the files that list only records before `log_start`, never the newest.

        Return them with their paths: they may be closed and removed in another thread.
        """
        expired = []
        for name, file in list(self._files.items())[:-1]:
            if file.end_offset >= log_start:
                break
            expired.append((self._files.pop(name), f"{FOLDER}/{name}"))
        return expired

    def close(self) -> None:
        """Let go of the files, synced."""
        for file in self._files.values():
            if not file.is_synced:
                file.sync()
            file.close()


_HEAD_SIZE = 64


def _file_name(now_ms: int) -> str:
    """Return the local time as Apache names files: year to millisecond, 17 digits."""
    seconds, millis = divmod(now_ms, 1000)
    return f"{datetime.fromtimestamp(seconds):%Y%m%d%H%M%S}{millis:03d}"  # noqa: DTZ006 - local


def _records(
    commit_log: CommitLog, at: int, until: int
) -> Iterator[tuple[int, RecordHead | None, int]]:
    """Yield each record before `until`: where it ends, its head, and where it begins.

    A head of None only says where to go on: at the end of a segment, or behind damage.
    """
    chunk_size = _CHUNK
    while at < until:
        first, segment = commit_log.segment_at(at)
        chunk_at, chunk_size = at, max(_CHUNK, chunk_size)
        buffer = memoryview(segment.copy(at - first, min(chunk_size, until - at)))
        while at < until and (size := claimed_size_at(buffer, at - chunk_at, at)):
            if at + size > chunk_at + len(buffer):
                break
            try:
                head = head_at(buffer, at - chunk_at)
            except (struct.error, IndexError, RecordError):
                size = 0
                break
            properties_at = at - chunk_at + size - len(head.properties)
            if int.from_bytes(buffer[properties_at - 2 : properties_at]) != len(head.properties):
                break  # its size is damaged: the next record is not where it says
            at += size
            yield at, head, at - size
        chunk_size = _CHUNK
        if at > chunk_at or at >= until:
            continue
        size = claimed_size_at(buffer, 0, at)
        rest = first + commit_log.segment_size - at
        if blank_size_at(buffer[:8], 0) == rest:
            at = first + commit_log.segment_size
        elif len(buffer) < size <= min(rest, until - at):
            chunk_size = size
            continue
        else:
            at = _behind_damage(commit_log, at, until)
        yield at, None, at


def _behind_damage(commit_log: CommitLog, at: int, until: int) -> int:
    found = next_record(commit_log, at)
    end = min(found.offset, until) if found else until
    commit_log.name_damage(at, end)
    return end


def _add_entries(head: RecordHead, offset: int, entries: list[Entry]) -> None:
    """Add the entries of a record, in Apache's order: unique key, keys, tag."""
    if head.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return
    properties = head.properties
    time_ms = head.store_time_ms
    hashes = _hashes(head.topic)
    unique = _value(properties, _UNIQ_KEY)
    if unique is not None:
        entries.append((hashes.of(unique), offset, time_ms))
    keys = _value(properties, _KEYS)
    if keys:
        entries += [(hashes.of(key), offset, time_ms) for key in keys.split(b" ") if key]
    tag = _value(properties, _TAGS)
    if tag:
        entries.append((_tag_hash(head.topic, tag), offset, time_ms))


@lru_cache(maxsize=1024)
def _hashes(topic: str) -> KeyHashes:
    return KeyHashes(f"{topic}#")


@lru_cache(maxsize=1024)
def _tag_hash(topic: str, tag: bytes) -> int:
    return KeyHashes(f"{topic}#T#").of(tag)


def _value(properties: bytes, name: bytes) -> bytes | None:
    """Return a property's value; `name` ends with its separator."""
    at = properties.find(name)
    if at < 0:
        return None
    begin = at + len(name)
    is_plain = at == 0 or properties[at - 1] == _END
    if not is_plain or properties.find(name, begin) >= 0:  # let the decoder judge
        value = decode_properties(properties).get(name[:-1].decode())
        return None if value is None else value.encode()
    end = properties.find(_END, begin)
    return properties[begin:end] if end >= 0 else properties[begin:]
