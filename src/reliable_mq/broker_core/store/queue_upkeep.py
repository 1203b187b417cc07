"""Upkeep of consume queues: write, sync, trim and remove them.

Receives all queues of a store. Returns files that the caller may close and remove. Does not decide
when.
"""

from collections.abc import Callable, MutableMapping
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
    """The queues of a store with unwritten units, unsynced files, or units before the log."""

    def __init__(
        self, queues: MutableMapping[_Key, ConsumeQueue], lanes: MutableMapping[_Key, Lane]
    ) -> None:
        self._queues = queues
        self._lanes = lanes
        # Queues with units that wait for a write. `flush` writes them, many at once: during a
        # dispatch an error would come between a message and its reply.
        self.gathering: dict[ConsumeQueue, None] = {}
        self._unsynced: dict[ConsumeQueue, None] = {}
        self._untrimmed: list[ConsumeQueue] = []
        self.grown: set[ConsumeQueue] = set()  # since the last `take_grown`
        self.due: list[ConsumeQueue] = []  # queues that have gathered many units
        self._gone: _Files = []
        self.extents = Extents()  # of the queues without unwritten units

    def flush_due(self) -> None:
        """Write the units of the queues in `due`.

        Raises:
            OSError, StoreError: when the disk fails for a reason other than lack of room.
        """
        queues, self.due = self.due, []
        for queue in queues:
            self._flush(queue)

    def flush(self) -> None:
        """Write all new units; without room they stay in memory for the next call."""
        queues, self.gathering = self.gathering, {}
        for queue in queues:
            self._flush(queue)

    def flush_some(self, count: int) -> None:
        """Write the units of the `count` queues that have waited longest."""
        for queue in list(islice(self.gathering, count)):
            del self.gathering[queue]
            self._flush(queue)

    def note_recovered(self) -> None:
        """Note that recovery may have changed any queue, and left unsynced files.

        A queue that had no room for its units is written later.
        """
        self._unsynced = dict.fromkeys(self._queues.values())
        self.gathering = {queue: None for queue in self._unsynced if queue.is_waiting}
        for queue in self._unsynced.keys() - self.gathering.keys():
            self._note_extent(queue)

    def _note_extent(self, queue: ConsumeQueue) -> None:
        if queue.end > 0:  # also without messages: its numbers must continue
            extent = QueueExtent(queue.first, queue.end, queue.last_log_offset)
            self.extents.set_extent(queue.topic, queue.queue_id, extent)

    def take_unsynced(self, count: int) -> list[DiskFile]:
        """Return the unsynced files of `count` queues; sync them before a checkpoint."""
        queues = list(islice(self._unsynced, count))
        for queue in queues:
            del self._unsynced[queue]
        return [file for queue in queues for file in queue.take_unsynced()]

    @property
    def unsynced(self) -> int:
        """How many queues have unsynced files."""
        return len(self._unsynced)

    @property
    def unwritten(self) -> int:
        """How many queues have unwritten units."""
        return len(self.gathering)

    def _flush(self, queue: ConsumeQueue) -> None:
        try:
            self._unsynced[queue] = None
            queue.flush()
            self._note_extent(queue)
        except (OSError, StoreError) as error:
            if not is_out_of_room(error):
                raise
            self.gathering[queue] = None

    def take_grown(self) -> set[ConsumeQueue]:
        """Return the queues that have grown since the last call."""
        grown, self.grown = self.grown, set()
        return grown

    def restart_at(self, queue: ConsumeQueue, number: int) -> None:
        """Forget all messages of a queue; it continues at `number` or after it."""
        self._gone += queue.restart_at(number)
        self.gathering.pop(queue, None)
        self._unsynced.pop(queue, None)
        self._note_extent(queue)

    def take_restarted(self) -> _Files:
        """Return the files of queues that began anew; the caller may close and remove them."""
        gone, self._gone = self._gone, []
        return gone

    def trim_all(self) -> None:
        """Make `trim_some` check every queue again."""
        self._untrimmed = list(self._queues.values())

    def trim_some(self, log_start: int, count: int) -> _Files:
        """Trim some more queues to the start of the log; return files that may be removed."""
        gone: _Files = []
        for _ in range(min(count, len(self._untrimmed))):
            queue = self._untrimmed.pop()
            first = queue.first
            gone += queue.trim(log_start)
            if queue.first != first:
                self._note_extent(queue)
        return gone

    def drop_unused(self, log_start: int, is_used: Callable[[str], bool]) -> _Files:
        """Remove the queues of unused topics that have no messages in the log."""
        gone: _Files = []
        for key, queue in list(self._queues.items()):
            if queue.log_end <= log_start and not is_used(key[0]):
                gone += queue.take_files()
                del self._queues[key]
                self.extents.drop(*key)
                self._lanes.pop(key, None)
                self.gathering.pop(queue, None)
                self._unsynced.pop(queue, None)
        return gone
