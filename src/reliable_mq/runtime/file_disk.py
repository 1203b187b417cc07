"""The folder of a store on a real disk.

Invariant: one `FileDisk` at a time holds a folder; see `folder_lock`.
"""

import os
from pathlib import Path

from reliable_mq.broker_core.store.disk import path_inside
from reliable_mq.errors import StoreError
from reliable_mq.runtime.descriptors import Descriptors
from reliable_mq.runtime.disk_file import FileDiskFile, sync_folder
from reliable_mq.runtime.folder_lock import FolderLock
from reliable_mq.runtime.lease_clock import boot_id

_MOUNTS = Path("/proc/self/mountinfo")
_MEMORY_KINDS = ("tmpfs", "ramfs", "devtmpfs")


def used_ratio_of(folder: Path) -> float:
    """Return how full a folder's medium is for programs, 0 to 1, rounded up to a hundredth.

    What only the system may use counts as taken (Apache RocketMQ `UtilAll`).

    Raises:
        OSError: when the folder is not there.
    """
    room = os.statvfs(folder)
    used = room.f_blocks - room.f_bfree
    whole = used + room.f_bavail
    return -(-used * 100 // whole) / 100 if whole else 1.0


class FileDisk:
    """The folder of a store, held by this object alone until `close`."""

    def __init__(self, root: Path) -> None:
        """Take hold of `root`; it is made when it is not there.

        Raises:
            StoreInUse: when another process, or another part of this one, holds it.
            StoreError: when it cannot be made or written.
        """
        self._root = root
        self._files = Descriptors()
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(root / "lock")
            self._is_mapped = not _is_in_memory(root)
        except OSError as error:
            raise StoreError(f"{root}: {error.strerror}; choose a folder you can write") from error

    def _at(self, path: str) -> Path:
        """Return where a file or folder of the store is."""
        return self._root / path_inside(path)

    @property
    def boot_id(self) -> str:
        """What names the machine's current run; "" where the system does not tell."""
        return boot_id()

    @property
    def used_ratio(self) -> float:
        """How full the medium is: see `used_ratio_of`."""
        return used_ratio_of(self._root)

    @property
    def capacity(self) -> tuple[int, int]:
        """Return how many bytes the medium holds, and how many of them are free."""
        room = os.statvfs(self._root)
        return room.f_blocks * room.f_frsize, room.f_bfree * room.f_frsize

    def modified_ms(self, path: str) -> int:
        """Return when a file was written last, in milliseconds since the epoch; -1 without one."""
        try:
            return self._at(path).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return -1

    def open(self, path: str, size: int) -> FileDiskFile:
        """Open a file, or create it with `size` zero bytes, folders included."""
        full = self._at(path)
        try:
            new_folders = [] if full.exists() else self._folders_of(full)
            full.parent.mkdir(parents=True, exist_ok=True)
            return FileDiskFile(full, size, self._files, new_folders, is_mapped=self._is_mapped)
        except OSError as error:
            raise StoreError(f"{full}: {error.strerror}") from error

    def _folders_of(self, file: Path) -> list[Path]:
        """Return the folders whose entries lead to `file`, innermost first."""
        below_root = file.relative_to(self._root).parents
        return [self._root / folder for folder in below_root]

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`; none when it does not exist."""
        full = self._at(folder)
        if not full.is_dir():
            return []
        return self._files.attempt(lambda: sorted(entry.name for entry in full.iterdir()))

    def size_of(self, path: str) -> int:
        """Return the size of a file, or -1 when there is none."""
        full = self._at(path)
        return full.stat().st_size if full.is_file() else -1

    def read_text(self, path: str) -> str:
        """Return the text of a file; empty when there is none."""
        full = self._at(path)
        return self._files.attempt(lambda: full.read_text("utf-8")) if full.is_file() else ""

    def write_text(self, path: str, text: str) -> None:
        """Replace the text of a file, durably and whole."""
        full = self._at(path)
        folders = [full.parent] if full.parent.exists() else self._folders_of(full)
        full.parent.mkdir(parents=True, exist_ok=True)
        new = full.with_name(full.name + ".tmp")
        try:
            with self._files.attempt(lambda: new.open("w", encoding="utf-8")) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(full)
        except OSError as error:
            new.unlink(missing_ok=True)
            error.filename = error.filename or str(full)
            raise
        for folder in folders:
            sync_folder(self._files, folder)

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder, durably; one that is not there is no error."""
        full = self._at(path)
        if full.is_dir():
            full.rmdir()
        else:
            full.unlink(missing_ok=True)
        if full.parent.is_dir():
            sync_folder(self._files, full.parent)

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.close()


def _is_in_memory(folder: Path) -> bool:
    """Whether files of a folder are kept in memory only, as tmpfs does."""
    status = folder.stat()
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        mounts = _MOUNTS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    kinds = [mount.partition(" - ")[2].split(" ")[0] for mount in mounts if f" {device} " in mount]
    return bool(kinds) and kinds[0] in _MEMORY_KINDS
