"""The file of an audit, of a broker or a name server: lines are added, full files kept a while.

Receives lines. The event loop writes them to the page cache before any reply of their turn leaves,
so a killed process has told nobody of a change that the file does not have. After a power loss the
lines of the last half minute may be missing: nothing waits for a sync.

When the file is full, it becomes `audit.log.1`, that one `audit.log.2`, and so on; the last one is
removed. Only the owner of the process may read the files.
Invariant A4: the file has whole lines only, unless the process or the machine died in a write.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from reliable_mq.broker_core.audit import PATH, gap_line
from reliable_mq.broker_core.store.disk import lack_of
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)


class AuditSizes(Protocol):
    """The settings of the file: bytes of one file, and how many full ones are kept."""

    @property
    def audit_file_size(self) -> int: ...

    @property
    def audit_file_count(self) -> int: ...


class AuditFile:
    """The file of one broker or name server. It is created with the first line.

    Args:
        store: the folder of the broker's store, or of the name server's.
    """

    def __init__(self, store: Path) -> None:
        self._path = store / PATH
        self._descriptor = -1
        self._size = 0
        self._lost = 0

    def write(self, lines: Sequence[bytes], sizes: AuditSizes, now_ms: int) -> None:
        """Add lines.

        When they cannot be written, they are lost. One log event says so. The next line that can
        be written says how many are missing.

        Args:
            lines: whole lines without their ends.
            sizes: the size of a file, and how many full ones are kept.
            now_ms: the time.
        """
        lost = self._lost
        if lost:
            lines = [gap_line(lost, now_ms), *lines]
        data = b"".join(line + b"\n" for line in lines)
        try:
            self._append(data, sizes.audit_file_size, sizes.audit_file_count)
        except OSError as error:
            self._cut()
            self._lost += len(lines) - bool(lost)
            if not lost:
                lack = lack_of(error)
                broker_events.AUDIT_NOT_WRITTEN.log(
                    log, path=str(self._path), problem=lack.what, advice=lack.advice
                )
            return
        self._lost = 0
        if lost:
            broker_events.AUDIT_WRITTEN_AGAIN.log(log, path=str(self._path), lost=lost)

    def _append(self, data: bytes, size_max: int, count: int) -> None:
        if self._descriptor < 0:
            self._open()
        if self._size and self._size + len(data) > size_max:
            self._rotate(count)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._size += len(data)

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        if self._size and not self._ends_with_a_line():  # the process died while it wrote
            self._size += os.write(self._descriptor, b"\n")

    def _ends_with_a_line(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    def _rotate(self, count: int) -> None:
        """Give each file the next number; remove those with a number above `count`."""
        self.close()
        kept = sorted(numbered_files(self._path), reverse=True)
        for number, file in kept:
            if number >= count:
                file.unlink()
            else:
                file.rename(f"{self._path}.{number + 1}")
        self._path.rename(f"{self._path}.1")
        self._open()

    def _cut(self) -> None:
        """Remove the part of a line that was written before the disk was full."""
        if self._descriptor < 0:
            return
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:  # the next start ends the line
            self.close()

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def numbered_files(path: Path) -> list[tuple[int, Path]]:
    """Return the full files that are kept, with their numbers; a larger number is an older file."""
    return [
        (int(file.suffix[1:]), file)
        for file in path.parent.glob(f"{path.name}.*")
        if file.suffix[1:].isdecimal()
    ]
