"""Messages that were deleted with their topics, and the file `config/deletedTopics.json`.

Receives deleted topics. Decides which records do not count, and with which message number a queue
continues. Touches no other file. The records stay in the log until retention removes them. Their
numbers are never used again, so a stored offset never names another message.

A queue continues with the first number of a new file, so that its files have no old message.
Apache's broker may open the store next, and cannot read old messages either. If a queue began
inside a file, Apache's broker would read invalid units.

Apache's broker ignores this file. When it deletes a queue, it removes the folder, and the queue
begins at 0 again. If that broker wrote the table of topics last, missing folders show its
deletions.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec

from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.progress import StoreProgress, TopicFolder
from reliable_mq.decodable import decodable
from reliable_mq.limits import CONSUME_QUEUE_UNIT_SIZE
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.java_int import I64_MAX

log = limited_log(__name__)

FOLDER = "consumequeue"
PATH = "config/deletedTopics.json"
_BLANK_SIZE = 0x7FFFFFFF  # size in a blank unit before the first unit of a queue
_Number = Annotated[int, msgspec.Meta(ge=0, le=I64_MAX)]


@decodable
class Deletion(msgspec.Struct, frozen=True, rename="camel"):
    """Records of a queue before `log_end` do not count; the queue continues with `begin`."""

    log_end: _Number
    begin: _Number


class QueueBegin(NamedTuple):
    """Where a queue begins, and the names of its files with only deleted messages."""

    begin: int = 0
    stale: frozenset[str] = frozenset()


class Deletions:
    """The deletions by topic and queue. A topic may exist again."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, Deletion]] = {}
        self._folders: frozenset[tuple[str, int]] | None = None  # while recovery runs
        self._is_news = False

    def note_deleted(self, topic: str, queue_id: int, log_end: int, begin: int) -> None:
        """Note that all messages of a queue up to a log offset are deleted."""
        queues = self._topics.setdefault(topic, {})
        if queue_id in queues:
            log_end = max(log_end, queues[queue_id].log_end)
        queues[queue_id] = Deletion(log_end, begin)
        self._is_news = True

    def note_others(self, disk: Disk, progress: StoreProgress | None, *, was_killed: bool) -> None:
        """Note the deletions of another broker that wrote the table of topics last.

        A queue without a folder is deleted. After a clean stop every queue with a message has a
        folder; after a crash the queues that `progress` knows have one. The end of the log is not
        known yet; `settle` sets it. Without any folder nothing is noted, because then all queues
        are rebuilt from the log.
        """
        folders = frozenset(
            (topic, int(queue_id))
            for topic in disk.names(FOLDER)
            for queue_id in disk.names(f"{FOLDER}/{topic}")
            if queue_id.isdecimal()
        )
        if not folders:
            return
        self._folders = None if was_killed else folders
        for topic, queues in progress.queues.items() if progress else ():
            for queue_id, extent in queues.items():
                if self._is_deleted(topic, queue_id, extent.last_log_offset):
                    continue
                if (topic, queue_id) not in folders:
                    self.note_deleted(topic, queue_id, I64_MAX, 0)
                    continue
                path = f"{FOLDER}/{topic}/{queue_id}/{0:020d}"
                begin = _log_begin(disk, path, disk.size_of(path))
                if begin > extent.last_log_offset >= 0:
                    self.note_deleted(topic, queue_id, begin, 0)

    @property
    def are_of_others(self) -> bool:
        """Whether another broker may have changed the queues since this one was stopped."""
        return self._folders is not None

    def has(self, topic: str) -> bool:
        """Whether a queue of this topic was ever deleted."""
        return topic in self._topics

    def settle(self, log_end: int) -> bool:
        """Set the end of the log; return whether the file must be written.

        No deletion reaches beyond this end, because later messages are new. A crash may have
        shortened the log, so a deletion may have reached further.
        """
        self._folders = None
        for topic, queues in self._topics.items():
            for queue_id, each in queues.items():
                if each.log_end == I64_MAX:
                    broker_events.QUEUE_DELETED_ELSEWHERE.log(log, queue_id=queue_id, topic=topic)
                if each.log_end > log_end:
                    queues[queue_id] = Deletion(log_end, each.begin)
                    self._is_news = True
        return self._take_news()

    def _take_news(self) -> bool:
        is_news, self._is_news = self._is_news, False
        return is_news

    def is_deleted(self, topic: str, queue_id: int, log_offset: int) -> bool:
        """Whether the record of a queue at a log offset was deleted with its topic."""
        if self._folders is not None and (topic, queue_id) not in self._folders:
            if not self._is_deleted(topic, queue_id, log_offset):
                self.note_deleted(topic, queue_id, I64_MAX, 0)
            return True
        return self._is_deleted(topic, queue_id, log_offset)

    def _is_deleted(self, topic: str, queue_id: int, log_offset: int) -> bool:
        queues = self._topics.get(topic)
        deletion = queues.get(queue_id) if queues else None
        return deletion is not None and log_offset < deletion.log_end

    def queues(self) -> list[tuple[str, int]]:
        """Return the queues that continue with a number above 0."""
        return [
            (topic, queue_id)
            for topic, queues in self._topics.items()
            for queue_id, each in queues.items()
            if each.begin
        ]

    def origin(self, disk: Disk, topic: str, queue_id: int, file_size: int) -> QueueBegin:
        """Return the begin of a queue, and its stale files, which must not be read."""
        deletion = self._topics.get(topic, {}).get(queue_id)
        begin = deletion.begin if deletion else 0
        begin += -begin % (file_size // CONSUME_QUEUE_UNIT_SIZE)
        if deletion is None or not begin:
            return QueueBegin()
        stale: set[str] = set()
        folder = f"{FOLDER}/{topic}/{queue_id}"
        for name in disk.names(folder):
            is_before = name.isdecimal() and int(name) < begin * CONSUME_QUEUE_UNIT_SIZE
            if not is_before or disk.size_of(f"{folder}/{name}") != file_size:
                continue
            if _log_begin(disk, f"{folder}/{name}", file_size) >= deletion.log_end:
                # Apache's broker created the topic again, and its queue began at 0.
                self.note_deleted(topic, queue_id, deletion.log_end, 0)
                return QueueBegin()
            stale.add(name)
        return QueueBegin(begin, frozenset(stale))

    def is_kept(self, topic: str, log_start: int) -> bool:
        """Whether the log may still have deleted records of a topic."""
        queues = self._topics.get(topic, {})
        return any(each.log_end > log_start for each in queues.values())

    def forget(self, log_start: int, is_used: Callable[[str], bool]) -> bool:
        """Forget unused topics without records in the log; return whether there were any."""
        kept = {
            topic: queues
            for topic, queues in self._topics.items()
            if is_used(topic) or self.is_kept(topic, log_start)
        }
        is_news = len(kept) != len(self._topics)
        self._topics = kept
        return is_news

    def dump(self) -> str:
        """Return the content of the file."""
        return msgspec.json.encode({"topics": self._topics}).decode()

    def load(self, text: str) -> None:
        """Load the deletions from the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        self._topics = msgspec.json.decode(text, type=_File).topics


def _log_begin(disk: Disk, path: str, size: int) -> int:
    """Return the log offset of the first unit in a file of a queue; -1 without units."""
    if size < CONSUME_QUEUE_UNIT_SIZE:
        return -1
    file = disk.open(path, size)

    def size_in(index: int) -> int:
        return int.from_bytes(file.copy(index * CONSUME_QUEUE_UNIT_SIZE + 8, 4))

    count = size // CONSUME_QUEUE_UNIT_SIZE
    index = bisect_left(range(count), True, key=lambda index: size_in(index) != _BLANK_SIZE)
    begin = -1
    if index < count and size_in(index):
        begin = int.from_bytes(file.copy(index * CONSUME_QUEUE_UNIT_SIZE, 8), signed=True)
    file.close()
    return begin


@decodable
class _File(msgspec.Struct):
    topics: dict[TopicFolder, dict[int, Deletion]] = {}
