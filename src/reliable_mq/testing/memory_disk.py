"""A disk in memory that forgets what was not synced, for tests of what must survive.

Receives what `broker_core.store.disk.Disk` asks; every change is an operation with a number, so
that a test can stop the world before any of them. It models what a medium may do and a file system
does not promise: of the writes since the last sync each sector keeps its old bytes, its new ones,
or any in between, and a new file may be gone with its name.
"""

import errno
import mmap
from collections import Counter
from collections.abc import Iterable, Sequence
from os import strerror
from random import Random
from typing import NamedTuple

from reliable_mq.broker_core.store.disk import EDGE_SIZE, FileText, path_inside
from reliable_mq.errors import StoreError

SECTOR = 512
_LARGE = 1024 * 1024


class MachineStopped(BaseException):
    """The machine stopped at this operation. No `Exception`: nothing may handle it."""


class Operation(NamedTuple):
    """One change of the disk: create, write, clear, sync, text or remove."""

    verb: str
    path: str
    at: int = 0
    size: int = 0


class _Content:
    """A file: what programs see, and how the medium lags behind."""

    def __init__(self, size: int) -> None:
        self.seen = _zeros(size)
        self.durable = _zeros(size)
        self.unsynced: list[tuple[int, bytes]] = []
        self.used = range(0)  # from the first to the last byte that was ever written
        self.is_named = False  # whether the medium knows the name

    def write(self, at: int, data: bytes) -> None:
        self.seen[at : at + len(data)] = data
        used = self.used or range(at, at)
        self.used = range(min(used.start, at), max(used.stop, at + len(data)))
        self.unsynced.append((at, data))

    def sync(self) -> None:
        for at, data in self.unsynced:
            self.durable[at : at + len(data)] = data
        self.unsynced.clear()
        self.is_named = True

    def forget(self) -> None:
        """Let programs see what the medium holds."""
        for at, data in self.unsynced:  # the rest is the same, and may be large
            self.seen[at : at + len(data)] = self.durable[at : at + len(data)]
        self.unsynced.clear()

    def settle(self, random: Random) -> None:
        """Let every sector of the medium come to some point of what was written to it."""
        touched = sorted({s for write in self.unsynced for s in _sectors(*write)})
        for sector in touched:
            begin, end = sector * SECTOR, min((sector + 1) * SECTOR, len(self.durable))
            writes = [write for write in self.unsynced if sector in _sectors(*write)]
            for at, data in writes[: random.randint(0, len(writes))]:
                low, high = max(begin, at), min(end, at + len(data))
                self.durable[low:high] = data[low - at : high - at]


def _zeros(size: int) -> bytearray | mmap.mmap:
    """Return so many zero bytes; many of them cost nothing until they are written.

    Of a shared map, each page that is read would be allocated, too: a hundred MiB for a timer log.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return mmap.mmap(-1, size, flags=private) if size >= _LARGE else bytearray(size)


def _sectors(at: int, data: bytes) -> range:
    return range(at // SECTOR, (at + len(data) - 1) // SECTOR + 1)


class MemoryFile:
    """A file of a `MemoryDisk`. A place before its begin is refused, and any use after `close`."""

    def __init__(self, disk: "MemoryDisk", path: str, content: _Content) -> None:
        self.path = path
        self._disk = disk
        self._seen_by_all = content
        self._is_closed = False
        self._reserved = range(0)

    @property
    def _content(self) -> _Content:
        if self._is_closed:
            raise StoreError(f"{self.path}: the file is closed")
        return self._seen_by_all

    def _note(self, verb: str, at: int = 0, size: int = 0) -> None:
        if self._disk.looks is not None:
            self._disk.looks.append(Operation(verb, self.path, at, size))

    @property
    def size(self) -> int:
        """How long the file is, in bytes."""
        return len(self._content.seen)

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from `at`; fewer at the end of the file."""
        if at < 0 or size < 0:
            raise OSError(errno.EINVAL, strerror(errno.EINVAL), self.path)
        self._note("read", at, size)
        return bytes(self._content.seen[at : at + size])

    def copy(self, at: int, size: int) -> bytes:
        """Return what `read` returns."""
        return self.read(at, size)

    def reserve(self, size: int) -> None:
        """Take room for the first `size` bytes: it is there."""
        self._reserved = range(size // 4)

    def _check_reserved(self, places: Iterable[int]) -> None:
        for place in places:
            if place not in self._reserved:
                raise IndexError(f"{self.path}: number {place} of {self._reserved}")

    def ints(self, places: Sequence[int]) -> list[int]:
        """Return the signed 4-byte numbers at these places."""
        self._check_reserved(places)
        return [int.from_bytes(self.read(at * 4, 4), signed=True) for at in places]

    def put_ints(self, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Write signed 4-byte numbers to places."""
        self._check_reserved(places)
        for at, number in zip(places, numbers, strict=True):
            self.write(at * 4, (number.to_bytes(4, signed=True),))

    def find(self, needle: bytes, at: int) -> int:
        """Return where `needle` is found at or after `at`, or -1."""
        self._note("find", at)
        return self._content.seen.find(needle, at)

    def write(self, at: int, parts: Sequence[bytes]) -> None:
        """Write `parts` one after another, from `at`."""
        data = b"".join(parts)
        if not data:
            return
        if not 0 <= at <= self.size - len(data):
            raise AssertionError(f"{self.path}: {len(data)} bytes at {at} of {self.size}")
        self._disk.operate(Operation("write", self.path, at, len(data)), self._content, data)
        self._content.write(at, data)

    def write_ahead(self, at: int) -> None:
        """Take no room: this medium has what it needs."""
        self._note("write_ahead", at)

    def clear(self, at: int) -> bool:
        """Let everything from `at` on be zero; return whether it was."""
        rest = self.size - at
        if self._content.seen[at:].count(0) == rest:
            return True
        self._disk.operate(Operation("clear", self.path, at, rest), self._content, bytes(rest))
        self._content.write(at, bytes(rest))
        return False

    def sync(self) -> None:
        """Return when all that was written before, and the file's name, are on the medium."""
        self._disk.operate(Operation("sync", self.path))
        self._content.sync()

    def read_ahead(self, *, is_wanted: bool) -> None:
        """Read ahead: there is nothing to wait for."""
        self._note(f"read_ahead {is_wanted}")

    def release(self) -> None:
        """Let go of memory that reads took."""
        self._note("release")

    def close(self) -> None:
        """Let go of the file."""
        if not self._is_closed:
            self._is_closed = True
            self._disk.opened[self.path] -= 1


class MemoryDisk:
    """A folder in memory.

    `operations` are the changes so far. Set `stop_before` to the number of an operation to stop the
    machine there: `MachineStopped` is raised, now and for every later operation. With `torn` a
    write that is stopped leaves its first `torn` bytes. Then `kill` or `lose_power`, and go on.
    Set `fail_at` to let one operation fail with an OSError instead, without effect: a medium that
    is broken, or with `error` ENOSPC one that is full. `opened` counts by path what was not closed.
    Set `looks` to a list to have noted there what changes nothing: reads, searches and hints.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.stop_before: int | None = None
        self.fail_at: int | None = None
        self.error = errno.EIO
        self.torn = 0
        self.boot = 1
        self._contents: dict[str, _Content] = {}
        self._texts: dict[str, str] = {}
        self.used = 0.0
        self.modified: dict[str, int] = {}
        self.opened: Counter[str] = Counter()
        self.looks: list[Operation] | None = None

    @property
    def boot_id(self) -> str:
        """What names the machine's current run."""
        return f"boot {self.boot}"

    @property
    def used_ratio(self) -> float:
        """How full the medium is: what a test says."""
        return self.used

    @property
    def capacity(self) -> tuple[int, int]:
        """A gigabyte, as full as a test says."""
        return 1 << 30, int((1 - self.used) * (1 << 30))

    def modified_ms(self, path: str) -> int:
        """Return when a file was written last: what a test says, 0 when it says nothing."""
        return self.modified.get(path, 0) if self.size_of(path) >= 0 else -1

    def operate(
        self, operation: Operation, content: _Content | None = None, data: bytes = b""
    ) -> None:
        """Count an operation; stop or fail at it when that was wanted."""
        number = len(self.operations)
        if self.stop_before is not None and number >= self.stop_before:
            if number == self.stop_before and content and self.torn:
                content.write(operation.at, data[: self.torn])
                self.torn = 0
            raise MachineStopped(operation)
        self.operations.append(operation)
        if number == self.fail_at:
            raise OSError(self.error, strerror(self.error), operation.path)

    def kill(self) -> None:
        """The process died: what it wrote is there, synced or not. The disk works again."""
        self.stop_before = None

    def lose_power(self, random: Random) -> None:
        """The machine went dark: what was not synced is there in part, or not. It works again."""
        for path, content in sorted(self._contents.items()):
            content.settle(random)
            if not content.is_named and random.random() < 0.5:
                del self._contents[path]
            content.forget()
            content.is_named = True
        self.stop_before = None
        self.boot += 1

    def files(self) -> dict[str, bytes]:
        """Return everything that programs see, by path."""
        texts = {path: text.encode() for path, text in self._texts.items()}
        return texts | {path: bytes(content.seen) for path, content in self._contents.items()}

    def is_text(self, path: str) -> bool:
        """Whether a file was written as a text, whole."""
        return path in self._texts

    def written_part(self, path: str) -> bytes:
        """Return what is in a file, from the first to the last byte that was ever written."""
        if path in self._texts:
            return self._texts[path].encode()
        content = self._contents[path]
        return bytes(content.seen[content.used.start : content.used.stop])

    def damage(self, path: str, data: bytes) -> None:
        """Put as many other bytes in the place of those of `written_part`, durably."""
        content = self._contents[path]
        content.write(content.used.start, data)
        content.sync()

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        return sorted((*self._contents, *self._texts))

    def place_file(self, path: str, data: bytes) -> None:
        """Place a file, durably, without an operation: how a test damages a store."""
        self._texts.pop(path, None)
        content = self._contents[path] = _Content(len(data))
        content.write(0, data)
        content.sync()

    def open(self, path: str, size: int) -> MemoryFile:
        """Open a file, or create it with `size` zero bytes."""
        content = self._contents.get(path_inside(path))
        if content is None or not content.seen:
            self.operate(Operation("create", path, 0, size))
            content = self._contents[path] = _Content(size)
        self.opened[path] += 1
        return MemoryFile(self, path, content)

    def known(self, path: str, size: int) -> MemoryFile:
        """Return a file that is there with this size."""
        content = self._contents[path_inside(path)]
        assert len(content.seen) == size
        self.opened[path] += 1
        return MemoryFile(self, path, content)

    def look(self, path: str, size: int, begin: int, end: int) -> bytes | None:
        """Return a part of a file, or both ends of it; None without it, or of another size."""
        content = self._contents.get(path_inside(path))
        if self.looks is not None:
            self.looks.append(Operation("look", path))
        if content is None or len(content.seen) != size:
            return None
        part = bytes(content.seen[begin:end])
        return part if len(part) <= 2 * EDGE_SIZE else part[:EDGE_SIZE] + part[-EDGE_SIZE:]

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`; none when it does not exist."""
        prefix = f"{folder}/"
        paths: Iterable[str] = (*self._contents, *self._texts)
        below = (path.removeprefix(prefix) for path in paths if path.startswith(prefix))
        return sorted({name.partition("/")[0] for name in below})

    def size_of(self, path: str) -> int:
        """Return the size of a file, or -1 when there is none."""
        if path in self._texts:
            return len(self._texts[path].encode())
        content = self._contents.get(path)
        return len(content.seen) if content else -1

    def read_text(self, path: str) -> str:
        """Return the text of a file; empty when there is none."""
        content = self._contents.get(path)
        return bytes(content.seen).decode() if content else self._texts.get(path, "")

    def write_text(self, path: str, text: FileText) -> None:
        """Replace the text of a file, durably and whole."""
        text = str(text)
        self.operate(Operation("text", path_inside(path), 0, len(text)))
        self._contents.pop(path, None)
        self._texts[path] = text

    def remove(self, path: str) -> None:
        """Remove a file, durably; one that is not there is no error."""
        if path in self._texts or path in self._contents:
            self.operate(Operation("remove", path))
            self._texts.pop(path, None)
            self._contents.pop(path, None)

    def write_back(self) -> None:
        """Do nothing: the syncs that follow say what is durable."""

    def close(self) -> None:
        """Let others have the folder."""
