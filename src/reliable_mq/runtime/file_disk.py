"""Files of a store on a real disk.

Invariant: one `FileDisk` at a time holds a folder; see `folder_lock`.
"""

import errno
import mmap
import os
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from reliable_mq.broker_core.store.disk import DiskFile, is_out_of_room, path_inside
from reliable_mq.errors import StoreError
from reliable_mq.runtime.folder_lock import FolderLock
from reliable_mq.runtime.lease_clock import boot_id

_PARTS_MAX = os.sysconf("SC_IOV_MAX")
_CHUNK = 1024 * 1024
_ZEROS = bytes(_CHUNK)
_AHEAD = 512 * 1024
_AHEAD_MIN = 128 * 1024
_TOUCHED_MAX = 16_384
_IS_LITTLE = sys.byteorder == "little"  # files hold numbers the other way round
_MOUNTS = Path("/proc/self/mountinfo")
_MEMORY_KINDS = ("tmpfs", "ramfs", "devtmpfs")


class FileDiskFile:
    """A file of fixed size: written by `pwritev`, read through a memory map.

    Both go through the page cache, so a read sees what was written before it. Where the page cache
    is all there is (tmpfs), a look through a map at a hole takes room, and without any it would end
    the process (SIGBUS): there `is_mapped` is False, and `pread` reads.
    """

    __slots__ = (
        "_descriptor",
        "_is_mapped",
        "_map",
        "_numbers",
        "_reserved",
        "_taken",
        "_touched",
        "_unsynced_folders",
        "size",
    )

    def __init__(
        self,
        path: Path,
        size: int,
        unsynced_folders: Sequence[Path] = (),
        *,
        is_mapped: bool = True,
    ) -> None:
        self._is_mapped = is_mapped
        self._unsynced_folders = unsynced_folders
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = os.fstat(self._descriptor).st_size
        if self.size == 0:
            os.ftruncate(self._descriptor, size)
            self.size = size
        self._map: mmap.mmap | None = None  # it takes a second descriptor: made when it is needed
        self._taken = 0  # up to where `write_ahead` has taken room
        self._reserved: mmap.mmap | None = None  # the reserved bytes, writable
        self._numbers = memoryview(b"").cast("i")  # the same, as numbers of this machine
        self._touched = 0  # how many numbers were looked at since its pages were let go of

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from `at`; fewer at the end of the file."""
        if self._is_mapped:
            return self._mapped()[at : at + size]
        return os.pread(self._descriptor, size, at)

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            self._map = mmap.mmap(self._descriptor, self.size, prot=mmap.PROT_READ)
        return self._map

    def copy(self, at: int, size: int) -> bytes:
        """Return what `read` returns, without a page of it staying in this process's memory."""
        data = os.pread(self._descriptor, size, at)
        return data if len(data) == min(size, self.size - at) else self.read(at, size)

    def reserve(self, size: int) -> None:
        """Take room on the medium for the first `size` bytes, and map them for `put_ints`.

        A write through a map that finds no room would end the process (SIGBUS).
        """
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, 0, size)
        self._reserved = mmap.mmap(self._descriptor, size)
        self._numbers = memoryview(self._reserved)[: size // 4 * 4].cast("i")

    def ints(self, places: Sequence[int]) -> list[int]:
        """Return the signed 4-byte numbers at these places."""
        self._touched += len(places)
        own = self._numbers
        found = array("i", [own[place] for place in places])
        if _IS_LITTLE:
            found.byteswap()
        return found.tolist()

    def put_ints(self, numbers: Mapping[int, int]) -> None:
        """Write signed 4-byte numbers, by place."""
        own = self._numbers
        values = array("i", numbers.values())
        if _IS_LITTLE:
            values.byteswap()
        for place, value in zip(numbers, values, strict=True):
            own[place] = value
        if self._touched > _TOUCHED_MAX:  # each may hold a page
            self.release()

    def find(self, needle: bytes, at: int) -> int:
        """Return where `needle` is found at or after `at`, or -1; holes are skipped."""
        for begin, extent_end in self._written_extents(at):
            # A needle may begin in one extent and end in the next.
            end = min(extent_end + len(needle) - 1, self.size)
            if self._is_mapped:
                found = self._mapped().find(needle, begin, end)
            else:
                found = self._find_piecewise(needle, begin, end)
            if found >= 0:
                return found
        return -1

    def _find_piecewise(self, needle: bytes, begin: int, end: int) -> int:
        for place in range(begin, end, _CHUNK):
            size = min(_CHUNK + len(needle) - 1, end - place)
            found = self.read(place, size).find(needle)
            if found >= 0:
                return place + found
        return -1

    def write(self, at: int, parts: Sequence[bytes]) -> None:
        """Write `parts` one after another, from `at`."""
        for begin in range(0, len(parts), _PARTS_MAX):
            group = parts[begin : begin + _PARTS_MAX]
            expected = sum(map(len, group))
            written = os.pwritev(self._descriptor, group, at)
            if written != expected:
                _write_rest(self._descriptor, b"".join(group)[written:], at + written)
            at += expected

    def write_ahead(self, at: int) -> None:
        """Write zeros where the next writes will go, when there are few of them left.

        A sync need not find room for what is written over them; the file's metadata stays as it is.
        """
        if at + _AHEAD_MIN <= self._taken or self._taken >= self.size:
            return
        if at > self._taken:  # opened anew, or somebody wrote without expecting it
            self._taken = self._end_of_extent(at)
        size = min(_AHEAD, self.size - self._taken)
        try:
            _write_rest(self._descriptor, _ZEROS[:size], self._taken)
        except OSError as error:
            if not is_out_of_room(error):
                raise
            return  # the writes themselves will tell
        self._taken += size

    def _end_of_extent(self, at: int) -> int:
        for begin, end in self._written_extents(at):
            return end if begin == at else at
        return at

    def clear(self, at: int) -> bool:
        """Let everything from `at` on be zero; return whether it was."""
        was_clear = True
        for begin, end in self._written_extents(at):
            for place in range(begin, end, _CHUNK):
                size = min(_CHUNK, end - place)
                if self.copy(place, size) != _ZEROS[:size]:
                    _write_rest(self._descriptor, _ZEROS[:size], place)
                    was_clear = False
        return was_clear

    def _written_extents(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of what was ever written, from `at` on."""
        while at < self.size:
            try:
                begin = os.lseek(self._descriptor, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    return
                begin, end = at, self.size  # this file system does not know its holes
            else:
                end = os.lseek(self._descriptor, begin, os.SEEK_HOLE)
            yield begin, end
            at = end

    def sync(self) -> None:
        """Return when all that was written before, and the file's name, are on the medium."""
        os.fdatasync(self._descriptor)
        if self._unsynced_folders:
            for folder in self._unsynced_folders:
                _sync_folder(folder)
            self._unsynced_folders = ()

    @property
    def descriptor(self) -> int | None:
        """What a sync of the data needs; None while the file's name must be synced with it."""
        return None if self._unsynced_folders else self._descriptor

    def read_ahead(self, *, is_wanted: bool) -> None:
        """Let the system read what lies behind what it is asked for, or not."""
        if self._is_mapped:
            self._mapped().madvise(mmap.MADV_NORMAL if is_wanted else mmap.MADV_RANDOM)

    def release(self) -> None:
        """Let go of the pages that are mapped: the system counts them as this process's own.

        They stay in the page cache, written or not, and the next look maps them again.
        """
        if self._map:
            self._map.madvise(mmap.MADV_DONTNEED)
        if self._reserved:
            self._touched = 0
            self._reserved.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Let go of the file."""
        if self._map:
            self._map.close()
        self._numbers.release()
        if self._reserved:
            self._reserved.close()
        os.close(self._descriptor)


def descriptor_of(file: DiskFile) -> int | None:
    """Return what the kernel needs to sync a file by itself; None: `sync` must be called."""
    return file.descriptor if isinstance(file, FileDiskFile) else None


def _write_rest(descriptor: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data = data[written:]
        at += written


class FileDisk:
    """The folder of a store, held by this object alone until `close`."""

    def __init__(self, root: Path) -> None:
        """Take hold of `root`; it is made when it is not there.

        Raises:
            StoreInUse: when another process, or another part of this one, holds it.
            StoreError: when it cannot be made or written.
        """
        self._root = root
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
        """How full the medium is for programs, 0 to 1, rounded up to a hundredth.

        What only the system may use counts as taken (Apache RocketMQ `UtilAll`).
        """
        room = os.statvfs(self._root)
        used = room.f_blocks - room.f_bfree
        whole = used + room.f_bavail
        return -(-used * 100 // whole) / 100 if whole else 1.0

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
            return FileDiskFile(full, size, new_folders, is_mapped=self._is_mapped)
        except OSError as error:
            raise StoreError(f"{full}: {error.strerror}") from error

    def _folders_of(self, file: Path) -> list[Path]:
        """Return the folders whose entries lead to `file`, innermost first."""
        below_root = file.relative_to(self._root).parents
        return [self._root / folder for folder in below_root]

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`; none when it does not exist."""
        full = self._at(folder)
        return sorted(entry.name for entry in full.iterdir()) if full.is_dir() else []

    def size_of(self, path: str) -> int:
        """Return the size of a file, or -1 when there is none."""
        full = self._at(path)
        return full.stat().st_size if full.is_file() else -1

    def read_text(self, path: str) -> str:
        """Return the text of a file; empty when there is none."""
        full = self._at(path)
        return full.read_text("utf-8") if full.is_file() else ""

    def write_text(self, path: str, text: str) -> None:
        """Replace the text of a file, durably and whole."""
        full = self._at(path)
        folders = [full.parent] if full.parent.exists() else self._folders_of(full)
        full.parent.mkdir(parents=True, exist_ok=True)
        new = full.with_name(full.name + ".tmp")
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(full)
        except OSError as error:
            new.unlink(missing_ok=True)
            error.filename = error.filename or str(full)
            raise
        for folder in folders:
            _sync_folder(folder)

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder, durably; one that is not there is no error."""
        full = self._at(path)
        if full.is_dir():
            full.rmdir()
        else:
            full.unlink(missing_ok=True)
        if full.parent.is_dir():
            _sync_folder(full.parent)

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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
