"""The port to a disk: what the store asks of files.

`runtime.file_disk.FileDisk` is the real one; `testing.memory_disk.MemoryDisk` forgets what was not
synced. Paths are relative to the store's root, with forward slashes.
"""

import errno
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from reliable_mq.errors import StoreError


class DiskFile(Protocol):
    """A file of fixed size, zero where nothing was written."""

    @property
    def size(self) -> int:
        """How long the file is, in bytes."""
        ...

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from `at`; fewer at the end of the file."""
        ...

    def copy(self, at: int, size: int) -> bytes:
        """Return what `read` returns, and keep none of it mapped: for passing once over a log."""
        ...

    def reserve(self, size: int) -> None:
        """Take room on the medium for the first `size` bytes, so that `put_ints` finds it.

        Raises:
            OSError: when there is none.
        """
        ...

    def ints(self, places: Sequence[int]) -> list[int]:
        """Return the signed 4-byte numbers at these places, which are reserved.

        The number at place n begins with byte 4 * n.
        """
        ...

    def put_ints(self, numbers: Mapping[int, int]) -> None:
        """Write signed 4-byte numbers, by place as `ints` has it; durable only after `sync`."""
        ...

    def find(self, needle: bytes, at: int) -> int:
        """Return where `needle` (not all zeros) is found at or after `at`, or -1.

        Parts of the file that were never written cost nothing.
        """
        ...

    def write(self, at: int, parts: Sequence[bytes]) -> None:
        """Write `parts` one after another, from `at`. Durable only after `sync`."""
        ...

    def write_ahead(self, at: int) -> None:
        """Expect writes at and after `at`: take room for some more on the medium.

        Writes that find their room taken are synced sooner. Changes nothing that can be read.

        Raises:
            OSError: when the medium is full; what was expected before still fits.
        """
        ...

    def clear(self, at: int) -> bool:
        """Let everything from `at` on be zero, durable only after `sync`; return whether it was.

        True means that nothing had to be written.
        """
        ...

    def sync(self) -> None:
        """Return when all that was written before, and the file's name, are on the medium."""
        ...

    def read_ahead(self, *, is_wanted: bool) -> None:
        """Let the system read more than it is asked for, or not."""
        ...

    def release(self) -> None:
        """Let go of memory that reads took; what was written is kept, durable or not."""
        ...

    def close(self) -> None:
        """Let go of the file; what was written is kept, durable or not."""
        ...


class Disk(Protocol):
    """The folder that holds a store."""

    @property
    def boot_id(self) -> str:
        """What names the machine's current run, or "" when unknown.

        While it stays the same there was no power loss: what was written is there, synced or not.
        """
        ...

    @property
    def used_ratio(self) -> float:
        """Return how full the medium is for programs, 0 to 1, rounded up to a hundredth."""
        ...

    @property
    def capacity(self) -> tuple[int, int]:
        """Return how many bytes the medium holds, and how many of them are free."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return when a file was written last, in milliseconds since the epoch; -1 without one."""
        ...

    def open(self, path: str, size: int) -> DiskFile:
        """Open a file, or create it with `size` zero bytes, folders included.

        A file that exists keeps the size it has, unless that is 0: it was being created.

        Raises:
            StoreError: when it cannot be opened, or the path leads out of the folder.
        """
        ...

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`; none when it does not exist."""
        ...

    def size_of(self, path: str) -> int:
        """Return the size of a file, or -1 when there is none."""
        ...

    def read_text(self, path: str) -> str:
        """Return the text of a file; empty when there is none."""
        ...

    def write_text(self, path: str, text: str) -> None:
        """Replace the text of a file, durably and whole: readers see the old or the new text."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder, durably; one that is not there is no error."""
        ...


def path_inside(path: str) -> str:
    """Return a path below a store's folder as it is.

    Raises:
        StoreError: when it leads out of that folder. Names of topics are part of paths.
    """
    if path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise StoreError(f"{path!r} is no path inside of a store")
    return path


_OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


def is_out_of_room(error: BaseException) -> bool:
    """Whether an `OSError`, or a `StoreError` because of one, says that there is no room.

    The medium is full, or the process or the system may open no more files. In both cases what is
    stored is sound, and the broker goes on when there is room.
    """
    return _number_of(error) in _OUT_OF_ROOM


def is_out_of_descriptors(error: BaseException) -> bool:
    """Whether an error says that a file could not be opened, because too many are open.

    No write and no sync fails with it, so what failed may be tried again.
    """
    return _number_of(error) in (errno.EMFILE, errno.ENFILE)


class DiskShortage(NamedTuple):
    """What there is too little of, and what to do about it."""

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


def lack_of(error: BaseException) -> DiskShortage:
    """Return what an error with `is_out_of_room` is for want of."""
    return _LACKS.get(_number_of(error), DiskShortage("the disk is full", "make room"))


def _number_of(error: BaseException) -> int:
    cause = error.__cause__ if isinstance(error, StoreError) else error
    return (isinstance(cause, OSError) and cause.errno) or 0
