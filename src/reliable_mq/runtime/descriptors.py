"""The descriptor pool of a store: limits how many of its files are open at the same time.

It receives files to read or write, and returns open descriptors. It closes the least recently used
ones. A broker with 50,000 queues has as many files, while a process may often open only 1,024.

Invariant D3: at most `most` files are open through this object, plus one in each thread. A
descriptor is closed when nothing refers to it. So a caller keeps its descriptor while it uses it.
A file may be closed before it is synced. A sync through a later descriptor covers earlier writes.
The sync also reports a failed earlier write, while Linux (since 4.17) keeps the file's inode.
"""

import os
import resource
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

from reliable_mq.broker_core.store.disk import is_out_of_descriptors

_T = TypeVar("_T")

_FILES_MIN = 16
_FILES_MAX = 16_384
_SHARE = 8  # files get this share of the descriptors at least; a mapped file takes two
_OTHERS_MAX = 8_192  # descriptors that are left for others, mostly connections
_AT_ONCE = 16  # files to close when the process has no descriptor left
_RESERVED_MAX = 64  # descriptors reserved for files: connections do not use them
_RESERVED_SHARE = 16  # the reserve is at most this share of all


class Descriptor:
    """An open descriptor. It is closed when this object is deleted."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class Pooled(Protocol):
    """A file that the pool opens and closes."""

    opened: Descriptor | None
    was_used: bool

    def let_go(self) -> None:
        """Drop all references that keep the file open."""


class Descriptors:
    """The open files of a store. Safe for use by several threads.

    Args:
        most: how many files may be open at the same time; None: as the process's limit allows.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = files_max(descriptors_max()) if most is None else most
        self._files: OrderedDict[Pooled, None] = OrderedDict()  # least recently opened first
        self._lock = Lock()
        self.new_file_rights = 0o600

    def __len__(self) -> int:
        return len(self._files)

    def open(self, file: Pooled, path: Path | str, flags: int) -> Descriptor:
        """Return the descriptor of a file. Open the file if necessary.

        Raises:
            OSError: when the file cannot be opened.
        """
        with self._lock:
            if file.opened is None:
                self._close_unused(len(self._files) + 1 - self._most)
                file.opened = Descriptor(
                    self._attempt(lambda: os.open(path, flags, self.new_file_rights))
                )
                self._files[file] = None
            return file.opened

    def forget(self, file: Pooled) -> None:
        """Close a file that is no longer used."""
        with self._lock:
            self._files.pop(file, None)
            file.let_go()

    def attempt(self, act: Callable[[], _T]) -> _T:
        """Run `act`, which needs a descriptor for a moment. If there is none, close files first.

        Raises:
            OSError: when `act` fails for another reason, or no file is left to close.
        """
        try:
            return act()
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
        with self._lock:
            return self._attempt(act)

    def _attempt(self, act: Callable[[], _T]) -> _T:
        while True:
            try:
                return act()
            except OSError as error:
                if not is_out_of_descriptors(error) or not self._files:
                    raise
            self._close_unused(_AT_ONCE)

    def _close_unused(self, count: int) -> None:
        """Close `count` files. Files used since the last pass get a second chance (CLOCK)."""
        for _ in range(2 * len(self._files)):
            if count <= 0 or not self._files:
                return
            file, _nothing = self._files.popitem(last=False)
            if file.was_used:
                file.was_used = False
                self._files[file] = None
            else:
                file.let_go()
                count -= 1


def files_max(descriptors: int) -> int:
    """Return how many files of a store may be open in a process with so many descriptors."""
    share = max(descriptors // _SHARE, descriptors - _OTHERS_MAX)
    return min(max(share, _FILES_MIN), _FILES_MAX)


def descriptors_max() -> int:
    """Return how many descriptors this process may have, at most a million."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if 0 <= soft < 1_000_000 else 1_000_000


def is_last(descriptor: int) -> bool:
    """Whether a descriptor is one of the last of this process, which are reserved for files.

    The system assigns the lowest free number. So a high number means that the others are in use.
    """
    most = descriptors_max()
    return descriptor >= most - min(_RESERVED_MAX, most // _RESERVED_SHARE)
