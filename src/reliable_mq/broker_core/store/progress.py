"""The progress note beside the checkpoint: the offset up to which log and queues agree.

The checkpoint holds times, so recovery by it begins at the start of a segment. This note holds
offsets: recovery begins at `log_end`. The note also shows that a queue has lost its files, even
after a clean stop. Apache RocketMQ ignores the file, and its broker may have written the store
later. So the note is trusted only as far as log and queues confirm it. Its loss costs time, no
data.
"""

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec

from reliable_mq.broker_core.store.checkpoint import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.decodable import decodable
from reliable_mq.errors import StoreError
from reliable_mq.limits import RETRY_TOPIC_LENGTH_MAX

PATH = "config/storeProgress.json"
FORMAT = 1  # increased when an older reliable_mq would misread the store


# A legal name of a topic's folder. A note with any other name is invalid.
TopicFolder = Annotated[
    str, msgspec.Meta(max_length=RETRY_TOPIC_LENGTH_MAX, pattern=r"^[^./\x00][^/\x00]*$")
]


class QueueExtent(msgspec.Struct, frozen=True, array_like=True):
    """The content of a queue: messages `first` to `end`, and its last record's log offset."""

    first: int
    end: int
    last_log_offset: int


NotedQueues = dict[str, dict[int, QueueExtent]]
"""Extents of queues, by topic and number."""


class SeenExtent(NamedTuple):
    """What a look at the file of a queue has shown; `log_end` is the end of its last record."""

    first: int
    end: int
    last_log_offset: int
    log_end: int


class Extents:
    """The extents of all queues, updated queue by queue, so that a checkpoint reads no queue.

    A dictionary that `taken` returned never changes, because another thread writes it.
    """

    def __init__(self) -> None:
        self._of_topics: NotedQueues = {}
        self._own: set[str] = set()  # topics whose part is not shared with a taken dictionary

    def _part(self, topic: str) -> dict[int, QueueExtent]:
        if topic not in self._own:
            self._own.add(topic)
            self._of_topics[topic] = {**self._of_topics.get(topic, {})}
        return self._of_topics[topic]

    def begin(self, noted: NotedQueues, changed: Iterable[tuple[str, int]]) -> None:
        """Begin with what is noted of all queues but some."""
        self._of_topics = noted.copy()
        for topic, queue_id in changed:
            self.drop(topic, queue_id)

    def set_extent(self, topic: str, queue_id: int, extent: QueueExtent) -> None:
        """Set the extent of a queue."""
        self._part(topic)[queue_id] = extent

    def drop(self, topic: str, queue_id: int) -> None:
        """Remove a queue."""
        part = self._part(topic)
        part.pop(queue_id, None)
        if not part:
            del self._of_topics[topic]
            self._own.discard(topic)

    def taken(self) -> NotedQueues:
        """Return the extents of all queues, by topic and queue id."""
        self._own.clear()
        return self._of_topics.copy()


@decodable
class StoreProgress(msgspec.Struct, kw_only=True, rename="camel"):
    """The state of the medium when this note was written.

    `log_end` is the end of the last record that is in its queue; `last_record` is its begin (-1
    without one); `last_time_ms` is its store time. `boot_id` identifies the boot of the machine in
    which the store was opened. With `is_sync_flush` the queues have only durable records.
    """

    format: int = FORMAT
    boot_id: str = ""
    is_sync_flush: bool = False
    log_start: int = 0
    log_end: int = 0
    last_record: int = -1
    last_time_ms: int = 0
    queues: dict[TopicFolder, dict[int, QueueExtent]] = {}

    def with_start(self, start: int) -> "StoreProgress":
        """Return this note, but with another start of the log, which may be behind its end."""
        if self.last_record >= start:
            return msgspec.structs.replace(self, log_start=start)
        return msgspec.structs.replace(self, log_start=start, log_end=start, last_record=-1)

    def is_newest(self, checkpoint: Checkpoint) -> bool:
        """Whether no other broker wrote the store later: the checkpoint follows each note."""
        return checkpoint.commit_log_time_ms <= self.last_time_ms


@decodable
class _Format(msgspec.Struct):
    format: int = FORMAT


def load_progress(disk: Disk) -> StoreProgress | None:
    """Return the progress note of a store; None without a readable note.

    Raises:
        StoreError: when a newer reliable_mq wrote it.
    """
    try:
        text = disk.read_text(PATH)
        written = msgspec.json.decode(text, type=_Format).format
        if written > FORMAT:
            raise StoreError(
                f"{PATH}: a newer reliable_mq wrote this store (format {written}; this version "
                f"supports {FORMAT}); use the newer version"
            )
        return msgspec.json.decode(text, type=StoreProgress)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def save_progress(disk: Disk, progress: StoreProgress) -> None:
    """Write the note durably. Everything that it claims must be synced before."""
    disk.write_text(PATH, msgspec.json.encode(progress).decode())


def save_note(disk: Disk, progress: StoreProgress, index_time_ms: int) -> None:
    """Write the note, and the checkpoint after it. `index_time_ms` 0: the index is as it was."""
    save_progress(disk, progress)
    checkpoint = load_checkpoint(disk)
    checkpoint.commit_log_time_ms = progress.last_time_ms
    checkpoint.consume_queue_time_ms = progress.last_time_ms
    checkpoint.index_time_ms = index_time_ms or checkpoint.index_time_ms
    save_checkpoint(disk, checkpoint)
