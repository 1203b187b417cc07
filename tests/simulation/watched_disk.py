"""The machine's disk: one in memory that is watched, and has no room now and then.

How far the log was written and synced is seen here, at the medium, whoever wrote it: the model
need not believe the broker.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import strerror
from pathlib import PurePosixPath
from random import Random
from typing import Any

from reliable_mq.broker_core.store.commit_log import FOLDER as LOG_FOLDER
from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.errors import StoreError
from reliable_mq.testing.memory_disk import SECTOR, MemoryDisk, MemoryFile, Operation

# What needs room that was not taken before; other files are small, or were reserved whole.
_GROWING = ("commitlog/", "consumequeue/", "timerlog/")


class WatchedDisk(MemoryDisk):
    """A disk in memory.

    `log_written` is the log offset up to which the file system has the log, `log_synced` the one up
    to which the medium has it. While `is_full`, nothing that takes room succeeds.
    """

    def __init__(self, random: Random, clock: Callable[[], float]) -> None:
        super().__init__()
        self._random = random
        self._clock = clock
        self._room_since_ms = clock()
        self.is_full = False
        self.segments_kept = 0  # with more the disk is said to be fuller than files may stay
        self.log_written = 0
        self.on_log: Callable[[int, bytes], None] = lambda _offset, _data: None
        self._unsynced: dict[int, int] = {}  # by segment: where what is not synced begins

    @property
    def used_ratio(self) -> float:
        """How full the disk is: by how many segments it holds."""
        is_over = 0 < self.segments_kept < len(self.names(LOG_FOLDER))
        return 0.86 if is_over else 0.5

    def modified_ms(self, path: str) -> int:
        """Every file was written just now: none goes because it is old."""
        return 2**53 if self.size_of(path) >= 0 else -1

    @property
    def has_had_room_ms(self) -> float:
        """For how long there is room, in milliseconds; 0 when there is none."""
        return 0.0 if self.is_full else self._clock() - self._room_since_ms

    def give_room(self) -> None:
        """Let there be room again."""
        if self.is_full:
            self.is_full = False
            self._room_since_ms = self._clock()

    def wipe(self) -> None:
        """Be another disk, an empty one."""
        self._contents.clear()
        self._texts.clear()
        self.log_opened(0)

    @property
    def log_synced(self) -> int:
        """The log offset up to which the medium has the log."""
        return min((self.log_written, *(first + at for first, at in self._unsynced.items())))

    def log_opened(self, end: int) -> None:
        """Note where the log ends that a broker has found and synced."""
        self.log_written = end
        self._unsynced.clear()

    def operate(self, operation: Operation, content: Any = None, data: bytes = b"") -> None:
        """Count an operation; stop or fail at it when that was wanted."""
        stops = self.stop_before is not None and len(self.operations) >= self.stop_before
        if self.is_full and self._takes_room(operation) and not stops:
            if content is not None and self._random.random() < 0.5:
                super().operate(operation, content, data)
                content.write(operation.at, data[: self._size_written(operation)])
            raise OSError(errno.ENOSPC, strerror(errno.ENOSPC), operation.path)
        super().operate(operation, content, data)
        self._watch(operation, data)

    def open(self, path: str, size: int) -> MemoryFile:
        """Open a file, or create it; fails as a real disk does."""
        try:
            return super().open(path, size)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error

    def _size_written(self, operation: Operation) -> int:
        """Return how many bytes of a write a full disk still takes: a file system has blocks.

        So no write ends within a sector, and later ones never complete a sector that the medium
        has taken half written.
        """
        end = operation.at + self._random.randrange(operation.size)
        return max(0, end // SECTOR * SECTOR - operation.at)

    def _takes_room(self, operation: Operation) -> bool:
        if operation.verb == "write":
            return operation.path.startswith(_GROWING)
        return operation.verb in ("create", "text")

    def _watch(self, operation: Operation, data: bytes) -> None:
        path = PurePosixPath(operation.path)
        if path.parent.name != LOG_FOLDER:
            return
        first = int(path.name)
        if operation.verb == "write":
            self.log_written = first + operation.at + operation.size
            self._unsynced.setdefault(first, operation.at)
            self.on_log(first + operation.at, data)
        elif operation.verb == "sync":
            self._unsynced.pop(first, None)


@contextmanager
def without_room() -> Iterator[None]:
    """Go on when there was no room on the disk, as the server does."""
    try:
        yield
    except (OSError, StoreError) as error:
        if not is_out_of_room(error):
            raise
