"""Ids that two messages have: stubs of one id in two databases, which are not one row copied. Pure.

Nobody can tell whose the records and consume logs of such an id are. The oldest stub is judged, and
the run says that it is not the whole truth.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SHOWN_MAX = 100


class TwinIds:
    """How many there are, and the first of them.

    Invariant: at most `SHOWN_MAX` are kept, in order; `count` counts all.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        self._first: list[str] = []

    def add(self, verdicts: pa.Table) -> None:
        """Count rows of `judge.VERDICTS`; each message by its first row."""
        is_twin = pc.and_(verdicts["is_lead"], pc.is_valid(verdicts["other_stub_create_date"]))
        ids = verdicts["message_id"].filter(is_twin).to_pylist()
        self.count += len(ids)
        self._keep(ids)

    def _keep(self, more: Iterable[str]) -> None:
        self._first = sorted([*self._first, *more])[:SHOWN_MAX]

    def to_data(self) -> list[Any]:
        """Return the counts as values that JSON knows, which `add_data` reads."""
        return [self.count, self._first]

    def add_data(self, data: Iterable[Any]) -> None:
        """Add those of another part."""
        count, first = data
        self.count += count
        self._keep(first)

    def told(self) -> dict[str, Any]:
        """Return them as the summary has them: `count`, and the `first`."""
        return {"count": self.count, "first": self._first}

    def flaw(self) -> str | None:
        """Return what is wrong, as one clause; None: no id stands for two messages."""
        if not self.count:
            return None
        few = "1 is that" if self.count == 1 else f"{self.count:,} are those"
        return (
            f"{few} of two stubs, in two databases, of which the older one was judged; the first"
            f" is {self._first[0]}"
        )

    def invariants(self) -> bool:
        """Return whether what the class promises holds."""
        return self._first == sorted(self._first) and len(self._first) <= min(SHOWN_MAX, self.count)
