"""Consume logs of which people are told, though they are no finding. Pure.

*Effects in doubt*: messages with an attempt whose process died. This is no verdict, because the
consume log is right about the database. But such an attempt may have had an effect outside the
database (a mail, a call) that the log does not count. Only a person can find out.

*Skipped*: messages that a person let a group skip. Nothing had their effect.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

SHOWN_MAX = 1_000
_COLUMNS = ("log_create_date", "message_id", "consumer_group", "topic", "verdict", "log_attempt")


class Doubts:
    """The number of consume logs with a mark, and the newest ones.

    Invariant: at most `SHOWN_MAX` are kept, newest first; `count` counts all.

    Args:
        mark: the column of `judge.VERDICTS` that has the mark.
    """

    def __init__(self, mark: str = "log_in_doubt") -> None:
        self._mark = mark
        self.count = 0
        self._newest: list[list[Any]] = []

    def add(self, verdicts: pa.Table) -> None:
        """Count rows of `judge.VERDICTS`."""
        found = verdicts.select([*_COLUMNS, self._mark]).filter(verdicts[self._mark])
        self.count += found.num_rows
        newest = found.select(_COLUMNS).sort_by([("log_create_date", "descending")])
        rows = newest.slice(0, SHOWN_MAX).to_pylist()
        self._keep([_told(row) for row in rows])

    def _keep(self, more: Iterable[list[Any]]) -> None:
        self._newest = sorted([*self._newest, *more], reverse=True)[:SHOWN_MAX]

    def to_data(self) -> list[Any]:
        """Return the counts as JSON values, for `add_data`."""
        return [self.count, self._newest]

    def add_data(self, data: Iterable[Any]) -> None:
        """Add the counts of another part."""
        count, newest = data
        self.count += count
        self._keep(newest)

    def summary(self) -> dict[str, Any]:
        """Return them for the summary: the `count`, and the `newest` ones."""
        names = ("received", *_COLUMNS[1:-1], "attempts")
        newest = [dict(zip(names, row, strict=True)) for row in self._newest]
        return {"count": self.count, "newest": newest}

    def invariants(self) -> bool:
        """Return whether the invariant holds."""
        is_sorted = self._newest == sorted(self._newest, reverse=True)
        return is_sorted and len(self._newest) <= min(SHOWN_MAX, self.count)


def _told(row: Mapping[str, Any]) -> list[Any]:
    received = row["log_create_date"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return [received, *(row[name] for name in _COLUMNS[1:])]
