"""Our own note beside the checkpoint: up to which offset log and queues are known to agree.

The checkpoint keeps times, so that recovery by it begins at the start of a segment. This note keeps
offsets: recovery begins at `log_end`, and a queue that lost its files is noticed, also after a
clean stop. Apache RocketMQ ignores the file; as its broker may have written the store since, the
note is believed only as far as the log and the queues bear it out. Losing it costs time, no data.
"""

from typing import Annotated

import msgspec

from reliable_mq.broker_core.store.checkpoint import Checkpoint
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.decodable import decodable
from reliable_mq.errors import StoreError
from reliable_mq.limits import RETRY_TOPIC_LENGTH_MAX

PATH = "config/storeProgress.json"
FORMAT = 1  # goes up when a store is no longer what an older reliable_mq takes it for


# What a store names a folder after: a note that says otherwise is none.
TopicFolder = Annotated[
    str, msgspec.Meta(max_length=RETRY_TOPIC_LENGTH_MAX, pattern=r"^[^./\x00][^/\x00]*$")
]


class QueueExtent(msgspec.Struct, frozen=True, array_like=True):
    """What a queue held: messages `first` to `end`, and the log offset of its last record."""

    first: int
    end: int
    last_log_offset: int


class Extents:
    """What all queues hold, kept up queue by queue: a checkpoint asks none of them.

    What `taken` returned never changes: another thread writes it.
    """

    def __init__(self) -> None:
        self._of_topics: dict[str, dict[int, QueueExtent]] = {}
        self._own: set[str] = set()  # topics whose part no taken one shares

    def _part(self, topic: str) -> dict[int, QueueExtent]:
        if topic not in self._own:
            self._own.add(topic)
            self._of_topics[topic] = {**self._of_topics.get(topic, {})}
        return self._of_topics[topic]

    def note(self, topic: str, queue_id: int, extent: QueueExtent) -> None:
        """Note what a queue holds now."""
        self._part(topic)[queue_id] = extent

    def drop(self, topic: str, queue_id: int) -> None:
        """Forget a queue."""
        part = self._part(topic)
        part.pop(queue_id, None)
        if not part:
            del self._of_topics[topic]
            self._own.discard(topic)

    def taken(self) -> dict[str, dict[int, QueueExtent]]:
        """Return what the queues hold, by topic and number."""
        self._own.clear()
        return self._of_topics.copy()


@decodable
class StoreProgress(msgspec.Struct, kw_only=True, rename="camel"):
    """What was on the medium when this was written.

    `log_end` is the end of the last record that is in its queue, `last_record` where that begins
    (-1 without one), `last_time_ms` its store time. `boot_id` is the machine's run in which the
    store was opened. `is_sync_flush` says that the queues know only what was durable in the log.
    """

    format: int = FORMAT
    boot_id: str = ""
    is_sync_flush: bool = False
    log_start: int = 0
    log_end: int = 0
    last_record: int = -1
    last_time_ms: int = 0
    queues: dict[TopicFolder, dict[int, QueueExtent]] = {}

    def is_newest(self, checkpoint: Checkpoint) -> bool:
        """Whether nobody else wrote the store since: the checkpoint is written after the note."""
        return checkpoint.commit_log_time_ms <= self.last_time_ms


@decodable
class _Format(msgspec.Struct):
    format: int = FORMAT


def load_progress(disk: Disk) -> StoreProgress | None:
    """Return the note of a store, or None when there is none that can be read.

    Raises:
        StoreError: when a newer reliable_mq wrote it.
    """
    try:
        text = disk.read_text(PATH)
        written = msgspec.json.decode(text, type=_Format).format
        if written > FORMAT:
            raise StoreError(
                f"{PATH}: a newer reliable_mq wrote this store (format {written}, this one knows "
                f"{FORMAT}); use that one"
            )
        return msgspec.json.decode(text, type=StoreProgress)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def save_progress(disk: Disk, progress: StoreProgress) -> None:
    """Write the note durably. What it claims must be synced before."""
    disk.write_text(PATH, msgspec.json.encode(progress).decode())
