"""The folder of a store on a real disk.

Invariant: at most one `FileDisk` holds a folder; see `folder_lock`.
"""

import ctypes
import os
import stat
from collections.abc import Callable
from pathlib import Path

from reliable_mq.access.access_table import PATH as ACCESS_PATH
from reliable_mq.broker_core.store.disk import EDGE_SIZE, FileText, RowsText, path_inside
from reliable_mq.errors import StoreError
from reliable_mq.runtime.descriptors import Descriptors
from reliable_mq.runtime.disk_file import FileDiskFile, NewNames, sync_folder, write_rest
from reliable_mq.runtime.folder_lock import FolderLock
from reliable_mq.runtime.lease_clock import boot_id
from reliable_mq.runtime.table_files import Pieces, TableFiles

Opener = Callable[[str, int], int]

PRIVATE_PATHS = frozenset({ACCESS_PATH})
"""Files that only the owner of the process may read."""
# Python has no `os.syncfs`. A new file in new folders needs up to five syncs, and each waits for
# the medium. After one `syncfs` it needs one.
_SYNCFS = getattr(ctypes.CDLL(None), "syncfs", None)
# Of a long table, so many bytes are on their way to the medium at a time. A sync of the log waits
# for them, and for all others if they were written at once. Source: Linux `sync_file_range(2)`.
_PACED_SIZE = 64 * 1024
_PACED_FROM = 512 * 1024  # a shorter text is written at once
_PIECES_AT_ONCE = 64
_SYNC_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)
_WAIT_WRITE_WAIT = 7
if _SYNC_RANGE is not None:
    _SYNC_RANGE.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_LOOK_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_MOUNTS = Path("/proc/self/mountinfo")
_MEMORY_KINDS = ("tmpfs", "ramfs", "devtmpfs")


def used_ratio_of(folder: Path) -> float:
    """Return how full the file system of a folder is, 0 to 1, rounded up to a hundredth.

    Space reserved for the system is not part of the whole (Apache RocketMQ `UtilAll`).

    Raises:
        OSError: when the folder does not exist.
    """
    room = os.statvfs(folder)
    used = room.f_blocks - room.f_bfree
    whole = used + room.f_bavail
    return -(-used * 100 // whole) / 100 if whole else 1.0


class FileDisk:
    """The folder of a store. This object holds its lock until `close`.

    A new folder is for its owner only (0700), as its files are all messages. New files and folders
    in it have its rights, less the process's umask: a group that may read the folder may read them.
    """

    def __init__(self, root: Path) -> None:
        """Lock `root`, and create it if it does not exist.

        Raises:
            StoreInUse: when this process or another one holds the lock.
            StoreError: when the folder cannot be created or written.
        """
        self._root = root
        self._root_text = f"{root}{os.sep}"  # to add a path to it is faster than to make a `Path`
        self._files = Descriptors()
        self._names = NewNames()
        self._tables = TableFiles(self._files, self._replace)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._rights = stat.S_IMODE(root.stat().st_mode) & 0o777 | 0o700
            self._files.new_file_rights = self._rights & 0o666
            self._lock = FolderLock(root / "lock")
            self._is_mapped = not _is_in_memory(root)
        except OSError as error:
            raise StoreError(f"{root}: {error.strerror}; choose a folder you can write") from error

    def _at(self, path: str) -> Path:
        """Return the full path of a file or folder of the store."""
        return self._root / path_inside(path)

    @property
    def boot_id(self) -> str:
        """The id of the machine's current boot; "" where the system has none."""
        return boot_id()

    @property
    def used_ratio(self) -> float:
        """How full the file system is, 0 to 1: see `used_ratio_of`."""
        return used_ratio_of(self._root)

    @property
    def capacity(self) -> tuple[int, int]:
        """Return the size of the file system and its free space, in bytes."""
        room = os.statvfs(self._root)
        return room.f_blocks * room.f_frsize, room.f_bfree * room.f_frsize

    def modified_ms(self, path: str) -> int:
        """Return when a file was last written, in ms since the epoch; -1 if it does not exist."""
        try:
            return self._at(path).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return -1

    def open(self, path: str, size: int) -> FileDiskFile:
        """Open a file. If it does not exist, create it with its folders and `size` zero bytes."""
        full = self._at(path)
        try:
            new_folders = 0 if full.exists() else len(self._folders_of(full))
            self._make(full.parent)
            text = str(full)  # a path takes ten times as much, and a broker may have many files
            return FileDiskFile(
                text, size, self._files, new_folders, self._names, is_mapped=self._is_mapped
            )
        except OSError as error:
            raise StoreError(f"{full}: {error.strerror}") from error

    def known(self, path: str, size: int) -> FileDiskFile:
        """Return a file that is there with this size; it is opened at its first use."""
        full = self._root_text + path_inside(path)
        return FileDiskFile(
            full, size, self._files, 0, self._names, is_mapped=self._is_mapped, is_known=True
        )

    def look(self, path: str, size: int, begin: int, end: int) -> bytes | None:
        """Return a part of a file, or both ends of it; None without it, or of another size."""
        try:
            descriptor = os.open(self._root_text + path_inside(path), _LOOK_FLAGS)
        except OSError:
            return None
        try:
            if os.fstat(descriptor).st_size != size:
                return None
            if end - begin <= 2 * EDGE_SIZE:
                return os.pread(descriptor, end - begin, begin)
            first = os.pread(descriptor, EDGE_SIZE, begin)
            return first + os.pread(descriptor, EDGE_SIZE, end - EDGE_SIZE)
        finally:
            os.close(descriptor)

    def _folders_of(self, file: Path) -> list[Path]:
        """Return the folders on the path to `file`, innermost first."""
        below_root = file.relative_to(self._root).parents
        return [self._root / folder for folder in below_root]

    def _make(self, folder: Path) -> None:
        """Make a folder of the store, and those above it."""
        if not folder.is_dir():
            if folder != self._root:
                self._make(folder.parent)
            folder.mkdir(mode=self._rights, exist_ok=True)

    def _with_rights(self, path: str, flags: int) -> int:
        return os.open(path, flags, self._rights & 0o666)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`; empty when it does not exist."""
        full = self._at(folder)
        if not full.is_dir():
            return []
        return self._files.attempt(lambda: sorted(os.listdir(full)))  # noqa: PTH208 - many names

    def size_of(self, path: str) -> int:
        """Return the size of a file, or -1 when it does not exist."""
        full = self._at(path)
        return full.stat().st_size if full.is_file() else -1

    def read_text(self, path: str) -> str:
        """Return the text of a file; empty when it does not exist."""
        full = self._at(path)
        return self._files.attempt(lambda: full.read_text("utf-8")) if full.is_file() else ""

    def write_text(self, path: str, text: FileText) -> None:
        """Replace the text of a file durably; after a crash it is the old or the new one.

        A file of a long table is not replaced if rows were only added: see `table_files`.
        """
        full = self._at(path)
        if isinstance(text, RowsText):
            self._tables.write(full, text)
        else:
            opener = _private if path in PRIVATE_PATHS else self._with_rights
            self._replace(full, [text.encode()], opener)

    def _replace(
        self, full: Path, pieces: Pieces, opener: Opener | None = None, *, is_paced: bool = False
    ) -> None:
        """Write a file anew, atomically and durably."""
        folders = [full.parent] if full.parent.exists() else self._folders_of(full)
        self._make(full.parent)
        new = full.with_name(full.name + ".tmp")
        opener = opener or self._with_rights
        try:
            with self._files.attempt(lambda: open(new, "wb", 0, opener=opener)) as file:
                _write_pieces(file.fileno(), pieces, is_paced=is_paced)
                os.fsync(file.fileno())
            new.replace(full)
        except OSError as error:
            new.unlink(missing_ok=True)
            error.filename = error.filename or str(full)
            raise
        for folder in folders:
            sync_folder(self._files, folder)

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder durably. A path that does not exist is no error."""
        full = self._at(path)
        if full.is_dir():
            full.rmdir()
        else:
            full.unlink(missing_ok=True)
        if full.parent.is_dir():
            sync_folder(self._files, full.parent)

    def write_back(self) -> None:
        """Write back everything of this file system, with Linux's `syncfs`.

        The names of all files are durable then. Their data is synced by each file's own sync, which
        also reports what the medium could not write.
        """
        if _SYNCFS is None:
            return
        descriptor = self._files.attempt(lambda: os.open(self._root, os.O_RDONLY | os.O_CLOEXEC))
        try:
            turn = self._names.begin_turn()
            if not _SYNCFS(descriptor):
                self._names.are_durable_before = turn
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Release the lock of the folder."""
        self._lock.close()


def _write_pieces(descriptor: int, pieces: Pieces, *, is_paced: bool) -> None:
    """Write the pieces of a text; those of a long one that is paced reach the medium in turn.

    The file must be synced afterwards: nothing is promised here.
    """
    size = synced = 0
    at_once = 2 if is_paced else _PIECES_AT_ONCE  # two are some rows, and the text behind them
    for begin in range(0, len(pieces), at_once):
        some = pieces[begin : begin + at_once]
        whole = sum(map(len, some))
        if (written := os.writev(descriptor, some)) < whole:
            write_rest(descriptor, b"".join(some)[written:], size + written)
            os.lseek(descriptor, 0, os.SEEK_END)
        size += whole
        is_long = is_paced and size >= _PACED_FROM and size - synced >= _PACED_SIZE
        if is_long and _SYNC_RANGE is not None:
            _SYNC_RANGE(descriptor, synced, size - synced, _WAIT_WRITE_WAIT)
            synced = size


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, also if it was there before."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def _is_in_memory(folder: Path) -> bool:
    """Whether the files of a folder are in memory only, as on tmpfs."""
    status = folder.stat()
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        mounts = _MOUNTS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    kinds = [mount.partition(" - ")[2].split(" ")[0] for mount in mounts if f" {device} " in mount]
    return bool(kinds) and kinds[0] in _MEMORY_KINDS
