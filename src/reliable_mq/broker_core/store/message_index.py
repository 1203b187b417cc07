"""The message index: files that list the messages with a key, built from the log.

Receives the visible part of the log. Returns log offsets for a key. Does not read bodies. Indexing
follows the dispatch, one slice at a time. Messages that were stored as columns have notes; for all
others it reads the log itself. So a rebuild after a crash is the same walk without notes. The last
entry shows where indexing must continue.

A message is listed under its unique key, each of its keys, and its tag; a rolled-back message is
not listed. Source: Apache RocketMQ 5.4.0 `IndexService`.
"""

import logging
from datetime import datetime
from typing import NamedTuple

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.disk import Disk, is_out_of_room
from reliable_mq.broker_core.store.index_entries import IndexColumns, IndexEntries
from reliable_mq.broker_core.store.index_file import IndexFile, file_size
from reliable_mq.broker_core.store.index_notes import IndexNotes
from reliable_mq.broker_core.store.log_walk import next_record
from reliable_mq.errors import StoreError
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.java_hash import index_hash
from reliable_mq.wire.record import blank_size_at
from reliable_mq.wire.record_scan import claimed_size_at

log = logging.getLogger(__name__)

FOLDER = "index"
_SLICE_SIZE = 192 * 1024  # bytes of the log per slice, unless one record is larger
_PIECE = 64 * 1024
_OFFSETS_MAX = 64  # Apache's maxMsgsNumBatch


class IndexSizes(NamedTuple):
    """Slots and entries of one file; Apache's maxHashSlotNum and maxIndexNum."""

    slots: int
    entries: int


class IndexSelection(NamedTuple):
    """Log offsets, oldest first, and log offset and store time (ms) of the index's last record."""

    offsets: list[int]
    end_offset: int
    end_time_ms: int


class MessageIndex:
    """The index files of a store.

    Invariant I2: `indexed` never decreases. Every record before it is listed, unless its file was
    removed.
    """

    def __init__(self, disk: Disk, commit_log: CommitLog, sizes: IndexSizes) -> None:
        self._disk = disk
        self._log = commit_log
        self._sizes = sizes
        self._files: dict[str, IndexFile] = {}
        self._entries = IndexEntries()
        self.notes = IndexNotes()
        self._is_resting = True
        # A slice may be listed only in part, because no further file could be created. Then these
        # are its begin, and the number of its listed entries.
        self._listed_from, self._listed = -1, 0
        self.indexed = 0

    def open(self, *, is_whole: bool, was_killed: bool, safe_time_ms: int) -> None:
        """Open the existing files; remove files that are not trusted, and list their records again.

        Args:
            is_whole: whether all written data is there, synced or not.
            was_killed: whether the last `append_entries` may be incomplete.
            safe_time_ms: files that end up to this time are on the medium, by the checkpoint.
        """
        size = file_size(*self._sizes)
        kept_end = 0
        is_full = False
        for name in self._disk.names(FOLDER):
            path = f"{FOLDER}/{name}"
            if not name.isdecimal() or self._disk.size_of(path) != size:
                broker_events.INDEX_FILE_IGNORED.log(log, path=path)
                continue
            file = None if is_full else self._opened(path, size)
            if file is None:  # without this file, later files would hide its missing records
                is_full = True
                self._disk.remove(path)
                continue
            is_safe = file.is_sound and (is_whole or file.end_time_ms <= safe_time_ms)
            if not is_safe or not kept_end <= file.last_offset < self._log.end:
                file.close()
                self._disk.remove(path)
                continue
            if was_killed:
                file.relink_slots()
            kept_end = file.last_offset
            self._files[name] = file
        self.indexed = max(self._log.start, self._end_of_record(kept_end))
        if self._files and kept_end >= self._log.start and self._files[max(self._files)].is_full:
            self._begin_in(kept_end)

    def _opened(self, path: str, size: int) -> IndexFile | None:
        """Open a file; None without room for its missing part, as in files of Apache's broker."""
        opened = self._disk.open(path, size)
        try:
            return IndexFile(opened, *self._sizes)
        except OSError as error:
            opened.close()
            if not is_out_of_room(error):
                raise
            broker_events.INDEX_NO_ROOM.log(log, path=path)
            return None

    def _begin_in(self, offset: int) -> None:
        """Begin with the last listed record, if a full file has cut its entries."""
        listed = 0
        for file in reversed(self._files.values()):
            count = file.count_of(offset)
            listed += count
            if count < file.next - 1:
                break
        first, segment = self._log.segment_at(offset)
        self._entries.begin()
        self._entries.read(segment.copy(offset - first, self.indexed - offset), offset)
        if listed < len(self._entries.columns().hashes):
            self.indexed = self._listed_from = offset
            self._listed = listed

    def _end_of_record(self, offset: int) -> int:
        if not self._files or offset < self._log.start:
            return self._log.start
        first, segment = self._log.segment_at(offset)
        head = memoryview(segment.copy(offset - first, _HEAD_SIZE))
        return offset + claimed_size_at(head, 0, offset)

    def advance(self, until: int, now_ms: int, *, is_short: bool = False) -> None:
        """List the next records before log offset `until`: a slice, less than 1 ms of work.

        An eighth of that if `is_short`.

        Raises:
            OSError, StoreError: when the disk fails, mostly for lack of room. `indexed` does not
                change then, and the next call retries.
        """
        if self.indexed >= until:
            self._rest()
            return
        entries = self._entries
        entries.begin(is_short=is_short)
        begin = at = max(self.indexed, self._log.start)
        # The notes stay until all is listed: if the disk fails, this slice begins again with them.
        notes = iter(self.notes if self.notes.count else ())
        note, read, wanted = next(notes, None), 0, 0
        while at < until and read < _SLICE_SIZE and not entries.is_enough:
            while note is not None and note.begin < at:
                note = next(notes, None)
            if note is not None and note.begin == at:
                listed_to, note = self.notes.list_in(entries, note, notes, until)
                if listed_to > at:
                    at = listed_to
                    continue
            first, segment = self._log.segment_at(at)
            stop = note.begin if note is not None and note.begin > at else until
            piece_size = wanted or min(_PIECE, stop - at)
            piece = segment.copy(at - first, min(piece_size, until - at))
            size, wanted = entries.read(piece, at), 0
            rest = first + self._log.segment_size - at
            if not size:
                claimed = claimed_size_at(memoryview(piece), 0, at)
                if blank_size_at(piece, 0) == rest:
                    size = rest
                elif len(piece) < claimed <= min(rest, until - at):
                    wanted = claimed
                else:
                    size = _behind_damage(self._log, at, until) - at
            at, read = at + size, read + size
        if self._listed_from != begin:
            self._listed_from, self._listed = begin, 0
        columns = entries.columns()
        self._put(columns.since(self._listed), now_ms)
        # This slice may be shorter than the one that was begun: the next one has the rest.
        self._listed_from, self._listed = at, self._listed - len(columns.hashes)
        self.indexed, self._is_resting = at, False
        if self.notes.count:
            self.notes.forget_before(at)

    def _rest(self) -> None:
        """Release the memory of the slots: the next message may arrive much later."""
        if not self._is_resting and self._files:
            self._files[max(self._files)].release()
        self._is_resting = True

    def _put(self, entries: IndexColumns, now_ms: int) -> None:
        while entries.hashes:
            newest = next(reversed(self._files.values()), None)
            if newest is not None and newest.is_full:
                newest.release()
            if newest is None or newest.is_full:
                newest = self._begin_file(now_ms)
            count = newest.append_entries(entries)
            entries = entries.since(count)
            self._listed += count

    def _begin_file(self, now_ms: int) -> IndexFile:
        name = _file_name(now_ms)
        if self._files:
            name = max(name, f"{int(max(self._files)) + 1:017d}")
        while self._disk.size_of(f"{FOLDER}/{name}") > 0:  # do not touch a file of another size
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
    ) -> IndexSelection:
        """Return the log offsets of the newest `count_max` messages with a key, in log order.

        Messages with another key of equal hash may be among them. Times are in milliseconds,
        inclusive.

        Args:
            topic: the topic of the messages.
            key: a unique key or a message key; a tag when `kind` is "T".
            count_max: maximum number of messages; at most 64.
            begin_ms: lower limit of the store time.
            end_ms: upper limit of the store time.
            kind: the kind of the key. Default "". Apache 5.4.0 knows "U", "K" and "T".
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
        return IndexSelection(sorted(offsets), *end)

    def take_full(self) -> list[IndexFile]:
        """Return the full files that are not synced yet."""
        return [file for file in self._files.values() if file.is_full and not file.is_synced]

    def take_expired(self, log_start: int) -> list[tuple[IndexFile, str]]:
        """Forget the files that list only records before `log_start`, but never the newest file.

        Return them with their paths. They may be closed and removed in another thread.
        """
        expired = []
        for name, file in list(self._files.items())[:-1]:
            if file.end_offset >= log_start:
                break
            expired.append((self._files.pop(name), f"{FOLDER}/{name}"))
        return expired

    def close(self) -> None:
        """Sync and close the files."""
        for file in self._files.values():
            if not file.is_synced:
                file.sync()
            file.close()


_HEAD_SIZE = 64


def _file_name(now_ms: int) -> str:
    """Return the local time as Apache's file name: year to millisecond, 17 digits."""
    seconds, millis = divmod(now_ms, 1000)
    return f"{datetime.fromtimestamp(seconds):%Y%m%d%H%M%S}{millis:03d}"  # noqa: DTZ006 - local


def _behind_damage(commit_log: CommitLog, at: int, until: int) -> int:
    found = next_record(commit_log, at)
    end = min(found.offset, until) if found else until
    commit_log.log_damage(at, end)
    return end
