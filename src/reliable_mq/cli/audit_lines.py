"""The lines of a broker's audit: reads the newest file and those that are kept, newest line first.

Receives the folder of a store. Another process may write, and may give files new numbers meanwhile.
"""

from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reliable_mq.broker_core.audit import PATH, AuditLine
from reliable_mq.errors import UsageError
from reliable_mq.escalate.audit_filter import AuditFilter
from reliable_mq.runtime.audit_file import numbered_files

Row = dict[str, Any]


class FoundLines(NamedTuple):
    """The wanted lines, the newest first, and how many lines cannot be read."""

    rows: list[Row]
    unreadable: int


def lines_of(store: Path, wanted: AuditFilter, limit: int) -> FoundLines:
    """Return the newest lines of a store's audit that are wanted.

    Raises:
        UsageError: the folder is no store, or has no audit.
    """
    newest = store / PATH
    if not store.is_dir():
        raise UsageError(f"--store {store}: there is no such folder")
    files = [newest, *(file for _, file in sorted(numbered_files(newest)))]
    if not any(file.exists() for file in files):
        raise UsageError(
            f"--store {store}: it has no {PATH}: no administrator has changed anything at its"
            " broker or name server, or it is no store"
        )
    rows: list[Row] = []
    unreadable = 0
    for file in files:
        newest_last = deque[Row](maxlen=limit - len(rows))  # a file can be large
        for line in _lines(file):
            row = _row_of(line)
            if row is None:
                unreadable += 1
            elif wanted.takes(row, line):
                newest_last.append(row)
        rows += reversed(newest_last)
        if len(rows) == limit:
            break
    return FoundLines(rows, unreadable)


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            yield from opened
    except FileNotFoundError:  # it has got another number, or was removed
        return


def _row_of(line: str) -> Row | None:
    """Return the fields of a line; None: it cannot be read, as after a power loss."""
    try:
        row: Row = msgspec.to_builtins(msgspec.json.decode(line, type=AuditLine))
        row["create_date"] = datetime.fromisoformat(row["create_date"])
    except (msgspec.MsgspecError, ValueError):
        return None
    return row if row["create_date"].tzinfo else None
