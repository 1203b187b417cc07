"""A file of a store on a real disk: opened on use, and closed when descriptors run out."""

import errno
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from operator import itemgetter
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
_TOUCHED_MAX = 262_144
_FLAGS = os.O_RDWR | os.O_CLOEXEC
_NO_NUMBERS = memoryview(b"").cast("i")


class NewNames:
    """When names of new files became durable together. Turns are counted up.

    Attributes:
        are_durable_before: the names of files made before this turn are durable.
    """

    def __init__(self) -> None:
        self.turn = 0
        self.are_durable_before = 0

    def begin_turn(self) -> int:
        """Begin a turn, and return its number: names are made durable next."""
        self.turn += 1
        return self.turn


class FileDiskFile:
    """A file of fixed size: written by `pwritev`, read through a memory map.

    Both use the page cache, so a read sees all earlier writes. On tmpfs there is only the page
    cache. There, a read of a hole through a map needs memory, and ends the process (SIGBUS) when
    there is none. So `is_mapped` is False on tmpfs, and `pread` reads.

    The descriptor and the maps are opened on use, and dropped when `files` needs their descriptors.
    A caller keeps a reference during use: a descriptor is closed when nothing refers to it.

    Args:
        path: where the file is.
        size: size of a new file, in bytes.
        files: the descriptor pool of the store.
        unsynced_folders: for a new file, how many of the folders around it need a sync.
        names: when names became durable; None: by the sync of each file only.
        is_mapped: whether to read through a map.
        is_known: whether the file is there with this size, so that it need not be opened yet.
    """

    __slots__ = (
        "_files",
        "_is_closed",
        "_is_mapped",
        "_is_random",
        "_made_in",
        "_map",
        "_names",
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
        path: Path | str,
        size: int,
        files: Descriptors,
        unsynced_folders: int = 0,
        names: NewNames | None = None,
        *,
        is_mapped: bool = True,
        is_known: bool = False,
    ) -> None:
        self._path = path
        self._files = files
        self._is_mapped = is_mapped
        self._is_closed = False
        self._unsynced_folders = unsynced_folders
        self.opened: Descriptor | None = None
        self.was_used = False  # since the last pass of `files`
        self._map: mmap.mmap | None = None  # takes a second descriptor, so it is made on first use
        self._is_random = False  # whether the system's read-ahead is off
        self._taken = 0  # end of the zeros that `write_ahead` has written
        self._reserved_size = 0
        self._reserved: mmap.mmap | None = None  # the reserved bytes, writable
        self._numbers = _NO_NUMBERS  # the same bytes as native numbers
        self._touched = 0  # numbers accessed since the mapped pages were released
        self.size = size
        if not is_known:
            descriptor = files.open(self, path, _FLAGS | os.O_CREAT)
            self.size = os.fstat(descriptor.number).st_size
            if self.size == 0:
                os.ftruncate(descriptor.number, size)
                self.size = size
        self._names = names or NewNames()
        self._made_in = self._names.turn  # read when the name is there

    def _descriptor(self) -> Descriptor:
        """Return the open descriptor. The caller keeps the object while it uses the number.

        Raises:
            StoreError: when the file cannot be opened.
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
        """Drop all references that keep the file open. The next use opens it again."""
        self.opened = self._map = self._reserved = None
        self._numbers = _NO_NUMBERS

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from offset `at`; fewer at the end of the file."""
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
        """Map the file. From now on it counts as an open file, even if it is only read."""
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
        """Return the same as `read`, but map no page into this process."""
        data = self._pread(at, size)
        return data if len(data) == min(size, self.size - at) else self.read(at, size)

    def reserve(self, size: int) -> None:
        """Allocate disk space for the first `size` bytes, and map them for `put_ints`.

        Without this, a write through the map on a full disk would end the process (SIGBUS).
        """
        descriptor = self._descriptor()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor.number, 0, size)
        self._reserved_size = size
        self._own_numbers()

    def _own_numbers(self) -> memoryview:
        """Return the reserved bytes as numbers. Map them again if the map was dropped."""
        self.was_used = True
        numbers = self._numbers
        if not numbers and self._reserved_size:
            self._reserved = self._map_of(self._reserved_size, mmap.PROT_READ | mmap.PROT_WRITE)
            numbers = memoryview(self._reserved)[: self._reserved_size // 4 * 4].cast("i")
            self._numbers = numbers
        return numbers

    def ints(self, places: Sequence[int]) -> list[int]:
        """Return the signed 4-byte numbers at these indexes."""
        self._touched += len(places)
        own, count = self._own_numbers(), len(places)
        found = itemgetter(*places)(own) if count > 1 else [own[place] for place in places]
        return list(struct.unpack(f">{count}i", struct.pack(f"={count}i", *found)))

    def put_ints(self, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Write signed 4-byte numbers at these indexes."""
        own, count = self._own_numbers(), len(numbers)
        values = struct.unpack(f"={count}i", struct.pack(f">{count}i", *numbers))
        for place, value in zip(places, values, strict=True):
            own[place] = value
        if self._touched > _TOUCHED_MAX:  # each access may have mapped a page
            self.release()

    def find(self, needle: bytes, at: int) -> int:
        """Return the first offset of `needle` at or after `at`, or -1. Holes are skipped."""
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
        """Write `parts` one after another, from offset `at`."""
        self.was_used = True
        descriptor = self.opened or self._open()
        if len(parts) == 1:
            (data,) = parts
            written = os.pwrite(descriptor.number, data, at)
            if written != len(data):
                write_rest(descriptor.number, data[written:], at + written)
            return
        for begin in range(0, len(parts), _PARTS_MAX):
            group = parts[begin : begin + _PARTS_MAX]
            expected = sum(map(len, group))
            written = os.pwritev(descriptor.number, group, at)
            if written != expected:
                write_rest(descriptor.number, b"".join(group)[written:], at + written)
            at += expected

    def write_ahead(self, at: int) -> None:
        """Write zeros ahead of the next writes, when few zeros are left.

        Later writes replace the zeros: their sync allocates no space and changes no file metadata.
        """
        if at + _AHEAD_MIN <= self._taken or self._taken >= self.size:
            return
        if at > self._taken:  # the file was opened again, or written without `write_ahead`
            self._taken = self._end_of_extent(at)
        size = min(_AHEAD, self.size - self._taken)
        descriptor = self._descriptor()
        try:
            write_rest(descriptor.number, _ZEROS[:size], self._taken)
        except OSError as error:
            if not is_out_of_room(error):
                raise
            return  # the writes themselves will report it
        self._taken += size

    def _end_of_extent(self, at: int) -> int:
        for begin, end in self._written_extents(at):
            return end if begin == at else at
        return at

    def clear(self, at: int) -> bool:
        """Write zeros over everything from `at` on; return whether all was zero before."""
        was_clear = True
        descriptor = self._descriptor()
        for begin, end in self._written_extents(at):
            for place in range(begin, end, _CHUNK):
                size = min(_CHUNK, end - place)
                if self.copy(place, size) != _ZEROS[:size]:
                    write_rest(descriptor.number, _ZEROS[:size], place)
                    was_clear = False
        return was_clear

    def _written_extents(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of each written extent, from `at` on."""
        descriptor = self._descriptor()
        while at < self.size:
            try:
                begin = os.lseek(descriptor.number, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole up to the end
                    return
                begin, end = at, self.size  # this file system does not report holes
            else:
                end = os.lseek(descriptor.number, begin, os.SEEK_HOLE)
            yield begin, end
            at = end

    def sync(self) -> None:
        """Sync the data of all earlier writes, and the file's name if it is new.

        Raises:
            StoreError: when the file or a folder cannot be opened. No sync has failed then.
            OSError: when a sync fails.
        """
        descriptor = self._descriptor()
        os.fdatasync(descriptor.number)
        if self._unsynced_folders:
            if self._made_in >= self._names.are_durable_before:
                for folder in list(Path(self._path).parents)[: self._unsynced_folders]:
                    self._sync_folder(folder)
            self._unsynced_folders = 0

    def _sync_folder(self, folder: Path) -> None:
        try:
            sync_folder(self._files, folder)
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
            raise StoreError(f"{folder}: {error.strerror}") from error

    def sync_descriptor(self) -> Descriptor | None:
        """Return the descriptor for a sync of the data; None when the name must be synced too."""
        self.was_used = True
        return None if self._unsynced_folders else self.opened or self._open()

    def read_ahead(self, *, is_wanted: bool) -> None:
        """Switch the system's read-ahead on or off."""
        self._is_random = not is_wanted
        if self._is_mapped:
            self._mapped().madvise(mmap.MADV_NORMAL if is_wanted else mmap.MADV_RANDOM)

    def release(self) -> None:
        """Unmap the pages: the system counts mapped pages as this process's memory.

        The pages stay in the page cache, and the next read maps them again.
        """
        mapped, reserved = self._map, self._reserved
        if mapped:
            mapped.madvise(mmap.MADV_DONTNEED)
        if reserved:
            self._touched = 0
            reserved.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the file for good."""
        self._is_closed = True
        self._files.forget(self)


def descriptor_of(file: DiskFile) -> Descriptor | None:
    """Return the descriptor for a sync by the kernel; None: call `sync` instead."""
    return file.sync_descriptor() if isinstance(file, FileDiskFile) else None


def write_rest(descriptor: int, data: bytes, at: int) -> None:
    """Write all of the data at a position."""
    while data:
        written = os.pwrite(descriptor, data, at)
        data = data[written:]
        at += written


def sync_folder(files: Descriptors, folder: Path) -> None:
    """Sync a folder: on return, the names in it are durable.

    Raises:
        OSError: when the folder cannot be opened, or the sync fails.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = files.attempt(lambda: os.open(folder, flags))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
