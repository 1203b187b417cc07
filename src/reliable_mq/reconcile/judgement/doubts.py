"""Effects in doubt: messages of which an attempt was never heard of again. Pure.

No verdict: the consume log says what is so. But an effect outside of the database (a mail, a call)
of such an attempt may have happened, once more than the log says, and only a person can know.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

SHOWN_MAX = 1_000
_COLUMNS = ("log_create_date", "message_id", "consumer_group", "topic", "verdict", "log_attempt")


class Doubts:
    """How many there are, and the newest of them.

    Invariant: at most `SHOWN_MAX` are kept, newest first; `count` counts all.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        self._newest: list[list[Any]] = []

    def add(self, verdicts: pa.Table) -> None:
        """Count rows of `judge.VERDICTS`."""
        found = verdicts.select([*_COLUMNS, "log_in_doubt"]).filter(verdicts["log_in_doubt"])
        self.count += found.num_rows
        newest = found.select(_COLUMNS).sort_by([("log_create_date", "descending")])
        rows = newest.slice(0, SHOWN_MAX).to_pylist()
        self._keep([_told(row) for row in rows])

    def _keep(self, more: Iterable[list[Any]]) -> None:
        self._newest = sorted([*self._newest, *more], reverse=True)[:SHOWN_MAX]

    def to_data(self) -> list[Any]:
        """Return the counts as values that JSON knows, which `add_data` reads."""
        return [self.count, self._newest]

    def add_data(self, data: Iterable[Any]) -> None:
        """Add those of another part."""
        count, newest = data
        self.count += count
        self._keep(newest)

    def told(self) -> dict[str, Any]:
        """Return them as the summary has them: `count`, and the `newest`."""
        names = ("received", *_COLUMNS[1:-1], "attempts")
        newest = [dict(zip(names, row, strict=True)) for row in self._newest]
        return {"count": self.count, "newest": newest}

    def invariants(self) -> bool:
        """Return whether what the class promises holds."""
        is_sorted = self._newest == sorted(self._newest, reverse=True)
        return is_sorted and len(self._newest) <= min(SHOWN_MAX, self.count)


def _told(row: Mapping[str, Any]) -> list[Any]:
    received = row["log_create_date"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return [received, *(row[name] for name in _COLUMNS[1:])]
