"""Files of a store on a real disk."""

import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from reliable_mq.errors import StoreError, StoreInUse

_PARTS_MAX = os.sysconf("SC_IOV_MAX")


class FileDiskFile:
    """A file of fixed size: written by `pwritev`, read through a memory map.

    Both go through the page cache, so a read sees what was written before it.
    """

    __slots__ = ("_descriptor", "_map", "size")

    def __init__(self, path: Path, size: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = os.fstat(self._descriptor).st_size
        if self.size == 0:
            os.ftruncate(self._descriptor, size)
            self.size = size
        self._map = mmap.mmap(self._descriptor, self.size, prot=mmap.PROT_READ)

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from `at`; fewer at the end of the file."""
        return self._map[at : at + size]

    def write(self, at: int, parts: Sequence[bytes]) -> None:
        """Write `parts` one after another, from `at`."""
        for begin in range(0, len(parts), _PARTS_MAX):
            group = parts[begin : begin + _PARTS_MAX]
            expected = sum(map(len, group))
            written = os.pwritev(self._descriptor, group, at)
            if written != expected:
                _write_rest(self._descriptor, b"".join(group)[written:], at + written)
            at += expected

    def sync(self) -> None:
        """Return when everything written before is on the medium."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()
        os.close(self._descriptor)


def _write_rest(descriptor: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data = data[written:]
        at += written


class FileDisk:
    """The folder of a store, held by this process alone until `close`."""

    def __init__(self, root: Path) -> None:
        """Take hold of `root`; it is made when it is not there.

        Raises:
            StoreInUse: when another process holds it.
            StoreError: when it cannot be made or written.
        """
        self._root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(root / "lock")
        except OSError as error:
            raise StoreError(f"{root}: {error.strerror}; choose a folder you can write") from error

    def open(self, path: str, size: int) -> FileDiskFile:
        """Open a file, or create it with `size` zero bytes, folders included."""
        full = self._root / path
        try:
            is_new = not full.exists()
            full.parent.mkdir(parents=True, exist_ok=True)
            file = FileDiskFile(full, size)
            if is_new:
                _sync_folder(full.parent)
        except OSError as error:
            raise StoreError(f"{full}: {error.strerror}") from error
        return file

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`; none when it does not exist."""
        full = self._root / folder
        return sorted(entry.name for entry in full.iterdir()) if full.is_dir() else []

    def size_of(self, path: str) -> int:
        """Return the size of a file, or -1 when there is none."""
        full = self._root / path
        return full.stat().st_size if full.is_file() else -1

    def read_text(self, path: str) -> str:
        """Return the text of a file; empty when there is none."""
        full = self._root / path
        return full.read_text("utf-8") if full.is_file() else ""

    def write_text(self, path: str, text: str) -> None:
        """Replace the text of a file, durably and whole."""
        full = self._root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        new = full.with_name(full.name + ".tmp")
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(full)
        _sync_folder(full.parent)

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder; one that is not there is no error."""
        full = self._root / path
        if full.is_dir():
            full.rmdir()
        else:
            full.unlink(missing_ok=True)

    def close(self) -> None:
        """Let other processes have the folder."""
        self._lock.close()


def _lock(path: Path) -> IO[str]:
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        file.close()
        raise StoreInUse(
            f"{path.parent}: another process uses this store; stop it or choose another folder"
        ) from error
    file.truncate(0)
    file.write("lock")
    file.flush()
    return file


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
