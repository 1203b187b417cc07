"""Files of long tables: rows that are added behind the others are written, not the whole table.

Receives the pieces of a table's text. Apache's broker reads the table as one JSON text, which has
1.7 MB with 10,000 topics. To write it for each new topic takes 1.5 ms of the processor, and the
medium must take it. So the new rows, and the end of the text, are written over the old end.

The loss of power may tear a file that is written in place. So there is a copy, `X.bak`: every
reader takes it if the file is broken (Apache RocketMQ `ConfigManager.load`). It gets what the file
has before the file changes. Only the head changes, which is in one sector, and what follows the old
rows. So a torn file has the old rows, or the new ones, or it is no JSON.

Invariant F4: while a file is written in place, its copy is durable, and has all rows that were
reported as written.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from reliable_mq.broker_core.store.disk import RowsText
from reliable_mq.runtime.descriptors import Descriptors
from reliable_mq.runtime.disk_file import write_rest

LONG = 256 * 1024
"""Bytes from which on a table is long. A shorter one is written as a whole."""
_HEAD = 512  # bytes of a sector; the head of a long table is filled up with spaces
_ADDED_MAX = 64 * 1024
_IN_A_ROW = 2  # changes that only add, before the copy is made

Pieces = Sequence[bytes]


class Replace(Protocol):
    """Writes a file anew, durably and atomically."""

    def __call__(self, full: Path, pieces: Pieces, *, is_paced: bool = False) -> None:
        """Write the pieces; `is_paced`: others wait for the medium."""
        ...


class _Stamp(NamedTuple):
    """By what a file that others have changed is known."""

    inode: int
    size: int
    modified_ns: int


class _Content(NamedTuple):
    """What a file has, as far as only this process has written it."""

    pieces: Pieces
    stamp: _Stamp | None  # None: it is gone again


class _Table:
    """A file and its copy."""

    def __init__(self, file: _Content) -> None:
        self.file = file
        self.copy: _Content | None = None
        self.added = 0  # changes in a row that only added rows


class TableFiles:
    """The files of long tables in one folder of a store.

    Args:
        files: opens them.
        replace: see there.
    """

    def __init__(self, files: Descriptors, replace: Replace) -> None:
        self._files = files
        self._replace = replace
        self._tables: dict[Path, _Table] = {}

    def write(self, path: Path, text: RowsText) -> None:
        """Replace the text of a table, durably; after a loss of power it is the old or the new one.

        Raises:
            OSError: when the disk fails, or has no room. The next call writes the whole table.
        """
        pieces = _with_room(list(text))
        table = self._tables.pop(path, None)  # an error leaves it unknown
        is_paced = text.is_paced
        if table is None or not self._extend(path, table, pieces, is_paced=is_paced):
            self._replace(path, pieces, is_paced=is_paced)
            known = _Table(_Content(pieces, self._stamp(path)))
            if table is not None:
                known.copy, known.added = table.copy, table.added
            table = known
        if len(pieces[0]) == _HEAD:
            self._tables[path] = table

    def _extend(self, path: Path, table: _Table, pieces: Pieces, *, is_paced: bool) -> bool:
        """Write what was added, if that is possible and worth it."""
        if _added(table.file.pieces, pieces) is None:
            table.added = 0
            return False
        table.added += 1
        copy = path.with_name(f"{path.name}.bak")
        if table.copy is None or not self._append(copy, table.copy, table.file.pieces):
            if table.added < _IN_A_ROW:
                return False
            self._replace(copy, table.file.pieces, is_paced=is_paced)
        table.copy = _Content(table.file.pieces, self._stamp(copy))
        if not self._append(path, table.file, pieces):
            return False
        table.file = _Content(pieces, self._stamp(path))
        return True

    def _append(self, path: Path, known: _Content, pieces: Pieces) -> bool:
        """Write what was added to a file, durably; False: the whole must be written."""
        added = _added(known.pieces, pieces)
        if added is None or known.stamp is None or self._stamp(path) != known.stamp:
            return False
        descriptor = self._files.attempt(lambda: os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        try:
            if added:
                write_rest(descriptor, added, sum(map(len, known.pieces[:-1])))
            if pieces[0] != known.pieces[0]:
                write_rest(descriptor, pieces[0], 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return True

    @staticmethod
    def _stamp(path: Path) -> _Stamp | None:
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return _Stamp(status.st_ino, status.st_size, status.st_mtime_ns)


def _with_room(pieces: list[bytes]) -> Pieces:
    """Return the pieces of a text; the head of a long one is filled up, so it keeps its length."""
    if sum(map(len, pieces)) >= LONG and len(pieces[0]) <= _HEAD:
        pieces[0] = pieces[0].ljust(_HEAD)
    return pieces


def _added(old: Pieces, new: Pieces) -> bytes | None:
    """Return what is behind the old rows in the new text, with its end; None: the rows differ.

    Also None: so much was added that the whole may be written. Empty: no row was added.
    """
    last = len(old) - 2  # the last rows; the end of the text follows
    if len(old[0]) != _HEAD or len(new[0]) != _HEAD or len(new) < len(old) or old[-1] != new[-1]:
        return None
    if old[1:last] != new[1:last] or not new[last].startswith(old[last]):
        return None
    more = (new[last][len(old[last]) :], *new[last + 1 :])
    if sum(map(len, more)) > _ADDED_MAX:
        return None
    return b"".join(more) if more != (b"", new[-1]) else b""
