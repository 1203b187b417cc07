"""The port to a disk: the file operations that the store needs.

`runtime.file_disk.FileDisk` is the real implementation. `testing.memory_disk.MemoryDisk` loses
unsynced data. Paths are relative to the store's root, with forward slashes.
"""

import errno
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from reliable_mq.errors import StoreError


class JoinedRows:
    """Some rows of a table, which never change. They are joined when they are first wanted.

    This may be in another thread. So its result is there before the rows are gone.
    """

    __slots__ = ("_between", "_joined", "_rows")

    def __init__(self, rows: Sequence[str], between: str) -> None:
        self._rows: Sequence[str] | None = rows
        self._between = between
        self._joined = b""

    def __bytes__(self) -> bytes:
        """Return the rows with the text between them, encoded."""
        if (rows := self._rows) is not None:
            self._joined = self._between.join(rows).encode()
            self._rows = None
        return self._joined


class RowsText:
    """The text of a file that is one large table. It comes in pieces.

    To join 400,000 rows takes 60 ms, in which no other thread runs. So rows are joined bit by bit,
    and those that have not changed are not joined again.

    Args:
        head: the text before the rows.
        parts: the rows.
        between: the text between two rows.
        tail: the text behind the rows.

    Attributes:
        is_paced: whether the medium shall get it bit by bit, because others wait for the medium.
    """

    def __init__(self, head: str, parts: Sequence[JoinedRows], between: str, tail: str) -> None:
        self._head, self._parts, self._between, self._tail = head, parts, between, tail
        self.is_paced = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces of the encoded text."""
        begin = self._head.encode()
        for part in self._parts:
            yield begin
            yield bytes(part)
            begin = self._between.encode()
        yield (self._tail if self._parts else self._head + self._tail).encode()

    def __str__(self) -> str:
        """Return the whole text."""
        return b"".join(self).decode()


FileText = str | RowsText
"""What a file of text shall hold."""


_MANY_FILES = 64

EDGE_SIZE = 256
"""Bytes at each end of what `Disk.look` returns."""


class DiskFile(Protocol):
    """A file of fixed size; bytes that were never written are zero."""

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        ...

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from `at`; fewer at the end of the file."""
        ...

    def copy(self, at: int, size: int) -> bytes:
        """Return what `read` returns, but keep no memory mapped; for a single pass over a log."""
        ...

    def reserve(self, size: int) -> None:
        """Allocate the first `size` bytes on the medium, so that `put_ints` has room.

        Raises:
            OSError: when there is no room.
        """
        ...

    def ints(self, places: Sequence[int]) -> list[int]:
        """Return the signed 4-byte numbers at these places, which must be reserved.

        The number at place n begins at byte 4 * n.
        """
        ...

    def put_ints(self, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Write signed 4-byte numbers to places, as in `ints`; durable only after `sync`."""
        ...

    def find(self, needle: bytes, at: int) -> int:
        """Return the position of `needle` (not all zeros) at or after `at`, or -1.

        Parts of the file that were never written are skipped without reading.
        """
        ...

    def write(self, at: int, parts: Sequence[bytes]) -> None:
        """Write `parts`, one after another, from position `at`. Durable only after `sync`."""
        ...

    def write_ahead(self, at: int) -> None:
        """Expect writes at and after `at`: allocate some more room on the medium.

        Syncs of allocated room are faster. The content does not change.

        Raises:
            OSError: when the medium is full; room that was allocated before stays.
        """
        ...

    def clear(self, at: int) -> bool:
        """Set everything from `at` on to zero; durable only after `sync`.

        Return True if it was zero already, so that nothing was written.
        """
        ...

    def sync(self) -> None:
        """Return when all earlier writes, and the name of the file, are on the medium."""
        ...

    def read_ahead(self, *, is_wanted: bool) -> None:
        """Set whether the operating system reads ahead in this file."""
        ...

    def release(self) -> None:
        """Release memory that reads used; written data stays, durable or not."""
        ...

    def close(self) -> None:
        """Close the file; written data stays, durable or not."""
        ...


class Disk(Protocol):
    """The folder of a store."""

    @property
    def boot_id(self) -> str:
        """An id of the machine's current boot, or "" when unknown.

        While it is the same, there was no power loss: written data is there, synced or not.
        """
        ...

    @property
    def used_ratio(self) -> float:
        """The used share of the medium for programs, 0 to 1, rounded up to a hundredth."""
        ...

    @property
    def capacity(self) -> tuple[int, int]:
        """Size of the medium and free bytes, both in bytes."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return the time of a file's last write in ms since the epoch; -1 without the file."""
        ...

    def open(self, path: str, size: int) -> DiskFile:
        """Open a file, or create it with `size` zero bytes; missing folders are created, too.

        An existing file keeps its size. A size of 0 means that its creation was interrupted.

        Raises:
            StoreError: when the file cannot be opened, or the path leaves the folder.
        """
        ...

    def known(self, path: str, size: int) -> DiskFile:
        """Return a file that is there with this size; it is opened at its first use.

        Raises, when it is used:
            StoreError: when it is gone.
        """
        ...

    def look(self, path: str, size: int, begin: int, end: int) -> bytes | None:
        """Return the bytes of a file from `begin` to `end`, and keep nothing open.

        Of more than twice `EDGE_SIZE` bytes only the first and the last `EDGE_SIZE` are returned.
        None: there is no such file, or it has another size.
        """
        ...

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`; none when it does not exist."""
        ...

    def size_of(self, path: str) -> int:
        """Return the size of a file, or -1 without the file."""
        ...

    def read_text(self, path: str) -> str:
        """Return the text of a file; empty without the file."""
        ...

    def write_text(self, path: str, text: FileText) -> None:
        """Replace the text of a file, durably and atomically."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder, durably; a missing one is not an error."""
        ...

    def write_back(self) -> None:
        """Write back all files at once, if the system can: the syncs that follow are cheap then.

        It promises nothing, so it reports no error.
        """
        ...


def path_inside(path: str) -> str:
    """Return `path` unchanged if it is inside the store's folder.

    Raises:
        StoreError: when the path leaves the folder. Paths contain names of topics.
    """
    if path[:1] == "/" or "\0" in path or (".." in path and ".." in path.split("/")):
        raise StoreError(f"{path!r} is not a path inside the store")
    return path


_OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


def is_out_of_room(error: BaseException) -> bool:
    """Whether an `OSError`, or a `StoreError` with such a cause, means that there is no room.

    The medium is full, or the process or the system has too many open files. In both cases the
    stored data is sound, and the broker continues when there is room.
    """
    return _number_of(error) in _OUT_OF_ROOM


def is_out_of_descriptors(error: BaseException) -> bool:
    """Whether an error means that a file cannot be opened because too many are open.

    Writes and syncs never fail with it, so the failed operation may be retried.
    """
    return _number_of(error) in (errno.EMFILE, errno.ENFILE)


class DiskShortage(NamedTuple):
    """The resource that is exhausted, and advice."""

    what: str
    advice: str


_LACKS = {
    errno.EMFILE: DiskShortage(
        "the process may open no more files", "raise its limit of open files"
    ),
    errno.ENFILE: DiskShortage(
        "the system may open no more files", "raise its limit of open files"
    ),
    errno.EDQUOT: DiskShortage("the quota of the disk is used up", "make room"),
}


class Syncable(Protocol):
    """What can be synced."""

    def sync(self) -> None:
        """Return when everything that was written is on the disk."""
        ...


def sync_files(files: Iterable[Syncable]) -> None:
    """Sync each of the files."""
    for file in files:
        file.sync()


def sync_together(disk: Disk, files: Sequence[Syncable]) -> None:
    """Sync the files. If they are many, write back everything first: that costs less than half."""
    if len(files) >= _MANY_FILES:
        disk.write_back()
    sync_files(files)


def lack_of(error: BaseException) -> DiskShortage:
    """Return the exhausted resource of an error for which `is_out_of_room` is true."""
    return _LACKS.get(_number_of(error), DiskShortage("the disk is full", "make room"))


def with_folder(error: BaseException, folder: str) -> StoreError | None:
    """Return an error of a store that names its folder; None: `error` names it, or is another."""
    if isinstance(error, StoreError) and folder not in str(error):  # its names are relative
        return type(error)(f"store {folder}: {error}")
    if isinstance(error, OSError) and is_out_of_room(error):
        lack = lack_of(error)
        return StoreError(f"store {folder}: {lack.what}; {lack.advice}")
    return None


def _number_of(error: BaseException) -> int:
    cause: BaseException | None = error
    while isinstance(cause, StoreError):
        cause = cause.__cause__
    return (isinstance(cause, OSError) and cause.errno) or 0
