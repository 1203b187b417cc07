"""One file of a store on a real disk: it is opened when it is used, and may be let go of then."""

import errno
import mmap
import os
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from reliable_mq.broker_core.store.disk import (
    DiskFile,
    is_out_of_descriptors,
    is_out_of_room,
)
from reliable_mq.errors import StoreError
from reliable_mq.runtime.descriptors import Descriptor, Descriptors

_PARTS_MAX = os.sysconf("SC_IOV_MAX")
_CHUNK = 1024 * 1024
_ZEROS = bytes(_CHUNK)
_AHEAD = 512 * 1024
_AHEAD_MIN = 128 * 1024
_TOUCHED_MAX = 16_384
_IS_LITTLE = sys.byteorder == "little"  # files hold numbers the other way round
_FLAGS = os.O_RDWR | os.O_CLOEXEC
_NO_NUMBERS = memoryview(b"").cast("i")


class FileDiskFile:
    """A file of fixed size: written by `pwritev`, read through a memory map.

    Both go through the page cache, so a read sees what was written before it. Where the page cache
    is all there is (tmpfs), a look through a map at a hole takes room, and without any it would end
    the process (SIGBUS): there `is_mapped` is False, and `pread` reads.

    The descriptor and the maps are made when they are needed, and go when `files` needs others.
    Whoever uses one refers to it meanwhile: it is closed when nobody does.

    Args:
        path: where the file is.
        size: of a file that is new.
        files: the open files of the store.
        unsynced_folders: whose entries lead to the file, when it is new.
        is_mapped: whether it may be read through a map.
    """

    __slots__ = (
        "_files",
        "_is_closed",
        "_is_mapped",
        "_is_random",
        "_map",
        "_numbers",
        "_path",
        "_reserved",
        "_reserved_size",
        "_taken",
        "_touched",
        "_unsynced_folders",
        "opened",
        "size",
        "was_used",
    )

    def __init__(
        self,
        path: Path,
        size: int,
        files: Descriptors,
        unsynced_folders: Sequence[Path] = (),
        *,
        is_mapped: bool = True,
    ) -> None:
        self._path = path
        self._files = files
        self._is_mapped = is_mapped
        self._is_closed = False
        self._unsynced_folders = unsynced_folders
        self.opened: Descriptor | None = None
        self.was_used = False  # since `files` looked at it last
        self._map: mmap.mmap | None = None  # it takes a second descriptor: made when it is needed
        self._is_random = False  # whether the system reads no more of the map than it is asked for
        self._taken = 0  # up to where `write_ahead` has taken room
        self._reserved_size = 0
        self._reserved: mmap.mmap | None = None  # the reserved bytes, writable
        self._numbers = _NO_NUMBERS  # the same, as numbers of this machine
        self._touched = 0  # how many numbers were looked at since its pages were let go of
        descriptor = files.open(self, path, _FLAGS | os.O_CREAT)
        self.size = os.fstat(descriptor.number).st_size
        if self.size == 0:
            os.ftruncate(descriptor.number, size)
            self.size = size

    def _descriptor(self) -> Descriptor:
        """Return the open file; the caller keeps it as long as it uses its number.

        Raises:
            StoreError: when it cannot be opened.
        """
        self.was_used = True
        return self.opened or self._open()

    def _open(self) -> Descriptor:
        if self._is_closed:
            raise StoreError(f"{self._path}: the file is closed")
        try:
            return self._files.open(self, self._path, _FLAGS)
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error

    def let_go(self) -> None:
        """Refer to nothing that keeps the file open; the next use opens it again."""
        self.opened = self._map = self._reserved = None
        self._numbers = _NO_NUMBERS

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from `at`; fewer at the end of the file."""
        if self._is_mapped:
            return self._mapped()[at : at + size]
        return self._pread(at, size)

    def _pread(self, at: int, size: int) -> bytes:
        descriptor = self._descriptor()
        return os.pread(descriptor.number, size, at)

    def _mapped(self) -> mmap.mmap:
        self.was_used = True
        return self._map or self._make_map()

    def _make_map(self) -> mmap.mmap:
        """Map the file. It counts as open from then on, also while it is only read."""
        made = self._map_of(self.size, mmap.PROT_READ)
        if self._is_random:
            made.madvise(mmap.MADV_RANDOM)
        self._map = made
        return made

    def _map_of(self, size: int, access: int) -> mmap.mmap:
        descriptor = self._descriptor()
        number = descriptor.number
        return self._files.attempt(lambda: mmap.mmap(number, size, prot=access))

    def copy(self, at: int, size: int) -> bytes:
        """Return what `read` returns, without a page of it staying in this process's memory."""
        data = self._pread(at, size)
        return data if len(data) == min(size, self.size - at) else self.read(at, size)

    def reserve(self, size: int) -> None:
        """Take room on the medium for the first `size` bytes, and map them for `put_ints`.

        A write through a map that finds no room would end the process (SIGBUS).
        """
        descriptor = self._descriptor()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor.number, 0, size)
        self._reserved_size = size
        self._own_numbers()

    def _own_numbers(self) -> memoryview:
        """Return the reserved bytes as numbers, mapped again if they were let go of."""
        self.was_used = True
        numbers = self._numbers
        if not numbers and self._reserved_size:
            self._reserved = self._map_of(self._reserved_size, mmap.PROT_READ | mmap.PROT_WRITE)
            numbers = memoryview(self._reserved)[: self._reserved_size // 4 * 4].cast("i")
            self._numbers = numbers
        return numbers

    def ints(self, places: Sequence[int]) -> list[int]:
        """Return the signed 4-byte numbers at these places."""
        self._touched += len(places)
        own = self._own_numbers()
        found = array("i", [own[place] for place in places])
        if _IS_LITTLE:
            found.byteswap()
        return found.tolist()

    def put_ints(self, numbers: Mapping[int, int]) -> None:
        """Write signed 4-byte numbers, by place."""
        own = self._own_numbers()
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
        descriptor = self._descriptor()
        for begin in range(0, len(parts), _PARTS_MAX):
            group = parts[begin : begin + _PARTS_MAX]
            expected = sum(map(len, group))
            written = os.pwritev(descriptor.number, group, at)
            if written != expected:
                _write_rest(descriptor.number, b"".join(group)[written:], at + written)
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
        descriptor = self._descriptor()
        try:
            _write_rest(descriptor.number, _ZEROS[:size], self._taken)
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
        descriptor = self._descriptor()
        for begin, end in self._written_extents(at):
            for place in range(begin, end, _CHUNK):
                size = min(_CHUNK, end - place)
                if self.copy(place, size) != _ZEROS[:size]:
                    _write_rest(descriptor.number, _ZEROS[:size], place)
                    was_clear = False
        return was_clear

    def _written_extents(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of what was ever written, from `at` on."""
        descriptor = self._descriptor()
        while at < self.size:
            try:
                begin = os.lseek(descriptor.number, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    return
                begin, end = at, self.size  # this file system does not know its holes
            else:
                end = os.lseek(descriptor.number, begin, os.SEEK_HOLE)
            yield begin, end
            at = end

    def sync(self) -> None:
        """Return when all that was written before, and the file's name, are on the medium.

        Raises:
            StoreError: when the file or a folder cannot be opened. No sync failed then.
            OSError: when a sync failed.
        """
        descriptor = self._descriptor()
        os.fdatasync(descriptor.number)
        if self._unsynced_folders:
            for folder in self._unsynced_folders:
                self._sync_folder(folder)
            self._unsynced_folders = ()

    def _sync_folder(self, folder: Path) -> None:
        try:
            sync_folder(self._files, folder)
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
            raise StoreError(f"{folder}: {error.strerror}") from error

    @property
    def descriptor(self) -> Descriptor | None:
        """What a sync of the data needs; None while the file's name must be synced with it."""
        return None if self._unsynced_folders else self._descriptor()

    def read_ahead(self, *, is_wanted: bool) -> None:
        """Let the system read what lies behind what it is asked for, or not."""
        self._is_random = not is_wanted
        if self._is_mapped:
            self._mapped().madvise(mmap.MADV_NORMAL if is_wanted else mmap.MADV_RANDOM)

    def release(self) -> None:
        """Let go of the pages that are mapped: the system counts them as this process's own.

        They stay in the page cache, written or not, and the next look maps them again.
        """
        mapped, reserved = self._map, self._reserved
        if mapped:
            mapped.madvise(mmap.MADV_DONTNEED)
        if reserved:
            self._touched = 0
            reserved.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Let go of the file for good."""
        self._is_closed = True
        self._files.forget(self)


def descriptor_of(file: DiskFile) -> Descriptor | None:
    """Return what the kernel needs to sync a file by itself; None: `sync` must be called."""
    return file.descriptor if isinstance(file, FileDiskFile) else None


def _write_rest(descriptor: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data = data[written:]
        at += written


def sync_folder(files: Descriptors, folder: Path) -> None:
    """Return when the names in a folder are on the medium.

    Raises:
        OSError: when it cannot be opened, or the sync failed.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = files.attempt(lambda: os.open(folder, flags))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
