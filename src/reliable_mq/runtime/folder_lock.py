"""The lock of a store's folder: one owner at a time, among all processes.

It locks the first byte of the file `lock`, as Apache RocketMQ does. So Apache's broker is excluded
too.
"""

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import IO

from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.errors import StoreInUse

_TEXT = "lock"

_held: set[tuple[int, int]] = set()  # device and inode of the lock files that this process holds
_held_guard = threading.Lock()
_parents: dict[tuple[int, int], int] = {}  # locks that the parent held when this process was forked


class FolderLock:
    """A lock file, held until `close`."""

    def __init__(self, path: Path) -> None:
        """Lock the file, and create it if it does not exist.

        A process does not see its own POSIX locks, and closing any descriptor of the file releases
        them. So this process looks in its own records before it opens the file.

        Raises:
            StoreInUse: when this process or another one holds the lock.
            OSError: when the file cannot be created or written.
        """
        with _held_guard:
            if path.exists() and _key(path.stat()) in _held:
                raise StoreInUse(
                    f"{path}: this process has opened the store already; close it first"
                )
            self._file = _locked(path)
            self._key = _key(os.fstat(self._file.fileno()))
            _held.add(self._key)

    def close(self) -> None:
        """Release the lock."""
        with _held_guard:
            _held.discard(self._key)
            self._file.close()


def _locked(path: Path) -> IO[str]:
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        holder = _parents.get(_key(os.fstat(file.fileno())))
        file.close()
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise StoreInUse(f"{path}: {_in_use(holder)}") from error
    file.seek(0)
    if file.read() != _TEXT:
        _write_text(file)
    return file


def _in_use(parent: int | None) -> str:
    if parent is None:
        return "another process uses this store; stop it or choose another folder"
    return (
        f"process {parent}, of which this process {os.getpid()} was forked, uses this store, and a"
        " broker inside a process serves no other one: start one for all (`reliable-mq broker`)"
    )


def _write_text(file: IO[str]) -> None:
    """Write the same text as Apache's broker. It is informational: on a full disk it is missing."""
    file.truncate(0)
    try:
        os.write(file.fileno(), _TEXT.encode())
    except OSError as error:
        if not is_out_of_room(error):
            raise


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _in_child() -> None:
    """Forget all locks in a forked child: POSIX locks are not inherited."""
    _parents.update(dict.fromkeys(_held, os.getppid()))
    _held.clear()
    _held_guard.release()


os.register_at_fork(
    before=_held_guard.acquire, after_in_parent=_held_guard.release, after_in_child=_in_child
)
