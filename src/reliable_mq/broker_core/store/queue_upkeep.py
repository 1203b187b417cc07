"""Upkeep of consume queues: make their files, write, sync, trim and remove them.

Receives all queues of a store. Returns files that the caller may close and remove. Does not decide
when.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from itertools import islice

from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.disk import DiskFile, is_out_of_descriptors, is_out_of_room
from reliable_mq.broker_core.store.lanes import Lane
from reliable_mq.broker_core.store.progress import Extents, QueueExtent
from reliable_mq.broker_core.store.retention import Closeable
from reliable_mq.errors import StoreError

_Key = tuple[str, int]
_Files = list[tuple[Closeable, str]]


class NewFiles:
    """Files that queues need next, to be made in another thread.

    A queue is not written until `QueueUpkeep.end_making` has its file: two who open a new file
    would not both know that its name must be synced.
    """

    def __init__(self, wanted: Mapping[ConsumeQueue, int]) -> None:
        self.wanted = wanted
        self.made: dict[ConsumeQueue, DiskFile] = {}

    def make(self) -> None:
        """Make the files; those for which there is no room are left out.

        Raises:
            OSError, StoreError: when the disk fails, or no more files may be opened. A further call
                makes the rest.
        """
        for queue, number in self.wanted.items():
            try:
                if queue not in self.made:
                    self.made[queue] = queue.make_file(number)
            except (OSError, StoreError) as error:
                if is_out_of_descriptors(error) or not is_out_of_room(error):
                    raise
                return


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
        self.lacks = 0  # how often a queue was not written, for want of room or of its file
        self._making: set[ConsumeQueue] = set()  # another thread makes their files
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

    def begin_making(self, count: int) -> NewFiles | None:
        """Return the files that the next `count` queues of `flush_some` lack; None: none."""
        queues = list(islice(self.gathering, count))
        wanted = {queue: queue.missing for queue in queues}
        lacking = {queue: number for queue, number in wanted.items() if number is not None}
        self._making |= lacking.keys()
        return NewFiles(lacking) if lacking else None

    def end_making(self, new: NewFiles) -> None:
        """Give the queues their files, unless they began anew or were removed meanwhile."""
        self._making -= new.wanted.keys()
        for queue, file in new.made.items():
            number = new.wanted[queue]
            is_known = self._queues.get((queue.topic, queue.queue_id)) is queue
            if is_known and queue.missing == number:
                queue.adopt(number, file)
            else:
                self._gone.append((file, queue.path_of_file(number)))

    def note_recovered(self, changed: Iterable[ConsumeQueue]) -> None:
        """Note that recovery may have changed these queues, and left unsynced files.

        A queue that had no room for its units is written later.
        """
        self._unsynced = dict.fromkeys(changed)
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
        if queue in self._making:
            self._keep(queue)
            return
        try:
            self._unsynced[queue] = None
            queue.flush()
            self._note_extent(queue)
        except (OSError, StoreError) as error:
            if not is_out_of_room(error):
                raise
            self._keep(queue)

    def _keep(self, queue: ConsumeQueue) -> None:
        self.lacks += 1
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
        """Return files that no queue needs any more; the caller may close and remove them."""
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
