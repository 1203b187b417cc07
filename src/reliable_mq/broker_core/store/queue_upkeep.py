"""What consume queues need beside units: to be written when there was no room, and to be trimmed.

Receives all queues of a store; hands on files that nobody needs any more; refuses to know why.
"""

from collections.abc import Callable, Iterable, MutableMapping
from itertools import islice

from reliable_mq.broker_core.store.appender import Lane
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.disk import DiskFile, is_out_of_room
from reliable_mq.broker_core.store.progress import Extents, QueueExtent
from reliable_mq.broker_core.store.retention import Closeable
from reliable_mq.errors import StoreError

_Key = tuple[str, int]
_Files = list[tuple[Closeable, str]]


class QueueUpkeep:
    """The queues of a store that wait for room on the disk, or to follow the log."""

    def __init__(
        self, queues: MutableMapping[_Key, ConsumeQueue], lanes: MutableMapping[_Key, Lane]
    ) -> None:
        self._queues = queues
        self._lanes = lanes
        self._unwritten: dict[ConsumeQueue, None] = {}
        self._unsynced: dict[ConsumeQueue, None] = {}
        self._untrimmed: list[ConsumeQueue] = []
        self._grown: set[ConsumeQueue] = set()
        self.due: list[ConsumeQueue] = []
        self._gone: _Files = []
        self.extents = Extents()  # of the queues that are not in `unwritten`

    def note_growth(self, queues: Iterable[ConsumeQueue]) -> None:
        """Note that units were put. They are written by the next `flush`, many of them at once.

        Nothing is written here, where an error would come between a message and its answer.
        """
        for queue in queues:
            self._grown.add(queue)
            self._unwritten[queue] = None
            if queue.is_due:
                self.due.append(queue)

    def flush_due(self) -> None:
        """Write the units of the queues in `due`, that have gathered many.

        Raises:
            OSError, StoreError: when the disk fails, other than for want of room.
        """
        queues, self.due = self.due, []
        for queue in queues:
            self._flush(queue)

    def flush(self) -> None:
        """Write the units that were put; for want of room they stay in memory for the next call."""
        queues, self._unwritten = self._unwritten, {}
        for queue in queues:
            self._flush(queue)

    def flush_some(self, count: int) -> None:
        """Write the units of `count` queues, those that wait longest."""
        for queue in list(islice(self._unwritten, count)):
            del self._unwritten[queue]
            self._flush(queue)

    def note_recovered(self) -> None:
        """Note that any queue may have changed, and have files that are not synced.

        One that found no room for its units is written when there is some.
        """
        self._unsynced = dict.fromkeys(self._queues.values())
        self._unwritten = {queue: None for queue in self._unsynced if queue.is_waiting}
        for queue in self._unsynced.keys() - self._unwritten.keys():
            self._note_extent(queue)

    def _note_extent(self, queue: ConsumeQueue) -> None:
        if queue.end > 0:  # also one whose messages have all expired: it goes on counting
            extent = QueueExtent(queue.first, queue.end, queue.last_log_offset)
            self.extents.note(queue.topic, queue.queue_id, extent)

    def take_unsynced(self, count: int) -> list[DiskFile]:
        """Return files of `count` queues that must be synced before a checkpoint can name them."""
        queues = list(islice(self._unsynced, count))
        for queue in queues:
            del self._unsynced[queue]
        return [file for queue in queues for file in queue.take_unsynced()]

    @property
    def unsynced(self) -> int:
        """How many queues have files that must be synced."""
        return len(self._unsynced)

    @property
    def unwritten(self) -> int:
        """How many queues hold units that are not written."""
        return len(self._unwritten)

    def _flush(self, queue: ConsumeQueue) -> None:
        try:
            self._unsynced[queue] = None
            queue.flush()
            self._note_extent(queue)
        except (OSError, StoreError) as error:
            if not is_out_of_room(error):
                raise
            self._unwritten[queue] = None

    def take_grown(self) -> set[ConsumeQueue]:
        """Return the queues that have grown since the last call."""
        grown, self._grown = self._grown, set()
        return grown

    def begin_anew(self, queue: ConsumeQueue, number: int) -> None:
        """Forget all messages of a queue; it goes on at `number` or behind it."""
        self._gone += queue.begin_anew(number)
        self._unwritten.pop(queue, None)
        self._unsynced.pop(queue, None)
        self._note_extent(queue)

    def take_gone(self) -> _Files:
        """Return files of queues that began anew: they may be closed and removed."""
        gone, self._gone = self._gone, []
        return gone

    def trim_all(self) -> None:
        """Let `trim_some` look at every queue once more."""
        self._untrimmed = list(self._queues.values())

    def trim_some(self, log_start: int, count: int) -> _Files:
        """Let some more queues begin where the log begins; return files that may be removed."""
        gone: _Files = []
        for _ in range(min(count, len(self._untrimmed))):
            queue = self._untrimmed.pop()
            first = queue.first
            gone += queue.trim(log_start)
            if queue.first != first:
                self._note_extent(queue)
        return gone

    def drop_unused(self, log_start: int, is_used: Callable[[str], bool]) -> _Files:
        """Forget the queues of unused topics whose messages are gone from the log."""
        gone: _Files = []
        for key, queue in list(self._queues.items()):
            if queue.log_end <= log_start and not is_used(key[0]):
                gone += queue.take_files()
                del self._queues[key]
                self.extents.drop(*key)
                self._lanes.pop(key, None)
                self._unwritten.pop(queue, None)
                self._unsynced.pop(queue, None)
        return gone
