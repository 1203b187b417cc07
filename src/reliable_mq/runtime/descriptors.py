"""The open files of a store: a limited number at a time. Others are opened when they are used.

Receives files that are to be read or written. Hands out open descriptors, and closes those that
were not used for the longest time. A broker with 50,000 queues has as many files, and a process may
often open 1,024 only.

Invariant D3: at most `most` files are open through this object, or one more in each thread. A
descriptor is closed when nothing refers to it any more, so whoever has one may use it meanwhile.
A file may be closed before it was synced. A sync through a later descriptor covers what was written
before. It also tells of a write that failed, as long as Linux (since 4.17) keeps the file's inode.
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
_SHARE = 8  # one descriptor of so many is a file's; a file that is mapped takes two
_AT_ONCE = 16  # files that go when the process has no descriptor left
_RESERVED_MAX = 64  # descriptors that connections leave to files,
_RESERVED_SHARE = 16  # or one of so many


class Descriptor:
    """An open file: it is closed when this object goes."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class Pooled(Protocol):
    """A file that is opened and let go of."""

    opened: Descriptor | None
    was_used: bool

    def let_go(self) -> None:
        """Refer to nothing that keeps the file open."""


class Descriptors:
    """The open files of a store. Threads share it.

    Args:
        most: how many files may be open at a time; None: a share of what the process may open.
    """

    def __init__(self, most: int | None = None) -> None:
        share = descriptors_max() // _SHARE
        self._most = min(max(share, _FILES_MIN), _FILES_MAX) if most is None else most
        self._files: OrderedDict[Pooled, None] = OrderedDict()  # the oldest first
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._files)

    def open(self, file: Pooled, path: Path, flags: int) -> Descriptor:
        """Return the descriptor of a file, which is opened if it is not open.

        Raises:
            OSError: when it cannot be opened.
        """
        with self._lock:
            if file.opened is None:
                self._let_go(len(self._files) + 1 - self._most)
                file.opened = Descriptor(self._attempt(lambda: os.open(path, flags, 0o644)))
                self._files[file] = None
            return file.opened

    def forget(self, file: Pooled) -> None:
        """Let go of a file that is used no more."""
        with self._lock:
            self._files.pop(file, None)
            file.let_go()

    def attempt(self, act: Callable[[], _T]) -> _T:
        """Do what needs a descriptor for a moment; without one, files are let go of for it.

        Raises:
            OSError: when it fails.
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
            self._let_go(_AT_ONCE)

    def _let_go(self, count: int) -> None:
        """Let go of files that were not used since they were looked at last, the oldest first."""
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


def descriptors_max() -> int:
    """Return how many descriptors this process may have; at most a million count."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if 0 <= soft < 1_000_000 else 1_000_000


def is_last(descriptor: int) -> bool:
    """Whether a descriptor is one of the last that this process may have. They are for files.

    The system gives the lowest number that is free, so the others are in use.
    """
    most = descriptors_max()
    return descriptor >= most - min(_RESERVED_MAX, most // _RESERVED_SHARE)
