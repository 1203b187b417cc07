"""Twin ids: two different stubs with the same message id, in two databases. Pure.

A copied row is no twin. For twins, it is unknown which stub a record or a consume log belongs to.
So the oldest stub is judged, and the run reports that its result is incomplete.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SHOWN_MAX = 100


class TwinIds:
    """The number of twin ids, and the first ones.

    Invariant: at most `SHOWN_MAX` ids are kept, in order; `count` counts all.
    """

    def __init__(self) -> None:
        """Start without ids."""
        self.count = 0
        self._first: list[str] = []

    def add(self, verdicts: pa.Table) -> None:
        """Count the twins in rows of `judge.VERDICTS`, once for each message."""
        is_twin = pc.and_(verdicts["is_lead"], pc.is_valid(verdicts["other_stub_create_date"]))
        ids = verdicts["message_id"].filter(is_twin).to_pylist()
        self.count += len(ids)
        self._keep(ids)

    def _keep(self, more: Iterable[str]) -> None:
        self._first = sorted([*self._first, *more])[:SHOWN_MAX]

    def to_data(self) -> list[Any]:
        """Return the counts as JSON values, for `add_data`."""
        return [self.count, self._first]

    def add_data(self, data: Iterable[Any]) -> None:
        """Add the counts of another part."""
        count, first = data
        self.count += count
        self._keep(first)

    def summary(self) -> dict[str, Any]:
        """Return them for the summary: the `count`, and the `first` ids."""
        return {"count": self.count, "first": self._first}

    def flaw(self) -> str | None:
        """Return the problem as one clause; None: there is no twin id."""
        if not self.count:
            return None
        few = "1 id belongs" if self.count == 1 else f"{self.count:,} ids belong"
        return (
            f"{few} to two stubs, in two databases, and the older stub was judged; the first id"
            f" is {self._first[0]}"
        )

    def invariants(self) -> bool:
        """Return whether the invariant holds."""
        return self._first == sorted(self._first) and len(self._first) <= min(SHOWN_MAX, self.count)
