"""The JSON of a table, row by row: each is encoded when it changes, and the whole is only joined.

A table of ten thousand topics is written whole whenever one of them changes, as Apache's broker
expects to find it; what has not changed must cost next to nothing there.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized

import msgspec

from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import TABLE_SIZE_MAX

_encoder = msgspec.json.Encoder(order="sorted")


def plain_json(value: object) -> str:
    """Return a value, whose keys are all text, as JSON with sorted names."""
    return _encoder.encode(value).decode()


def _row(name: str, value: object) -> str:
    return f"{plain_json(name)}:{plain_json(value)}"


class JsonRows:
    """The rows by name, in the order in which they came.

    Invariant J1: there is a row for each entry of the table that it is kept beside.
    Invariant J2: all rows together have `_size` characters.
    """

    def __init__(self) -> None:
        self._rows: dict[str, str] = {}
        self._size = 0
        self._sorted: list[str] | None = None  # the names; None: they have changed

    def check(self, table: Sized) -> None:
        """J1 and J2; see the class."""
        if len(self._rows) != len(table):
            raise InvariantBroken(f"J1: {len(self._rows)} rows for {len(table)} entries")
        if sum(map(len, self._rows.values())) != self._size:
            raise InvariantBroken(f"J2: {self._size} characters are counted")

    @property
    def size(self) -> int:
        """How many characters all rows have together."""
        return self._size

    def has_room(self, name: str, value: object) -> bool:
        """Whether a peer may set this row: the table is not full, or its row gets no longer."""
        if self._size < TABLE_SIZE_MAX:
            return True
        known = self._rows.get(name)
        return known is not None and len(_row(name, value)) <= len(known)

    def set(self, name: str, value: object) -> None:
        """Add or replace a row."""
        row = _row(name, value)
        known = self._rows.get(name)
        if known is None:
            self._sorted = None
        self._size += len(row) - len(known or "")
        self._rows[name] = row

    def remove(self, name: str) -> None:
        """Remove a row, if it is there."""
        row = self._rows.pop(name, None)
        if row is not None:
            self._size -= len(row)
            self._sorted = None

    def names(self) -> Sequence[str]:
        """Return the names of all rows, sorted. The caller does not change them."""
        if self._sorted is None:
            self._sorted = sorted(self._rows)
        return self._sorted

    def parts(self, names: Iterable[str] | None, size_max: int) -> Iterator[list[str]]:
        """Yield names whose rows have `size_max` characters together, or one that has more.

        Args:
            names: which; None for all. Those that are gone by the time of their part are left out.
            size_max: characters of JSON in one part.
        """
        part: list[str] = []
        size = 0
        for name in list(self._rows if names is None else names):
            row = self._rows.get(name)
            if row is None:
                continue
            if part and size + len(row) > size_max:
                yield part
                part, size = [], 0
            part.append(name)
            size += len(row)
        if part:
            yield part

    def table(self, names: Iterable[str] | None = None, *, indent: bool = False) -> str:
        """Return the rows as one object, or those of `names` that there are.

        Args:
            names: None for all.
            indent: whether each row has a line of its own, two tabs deep.
        """
        if names is None:
            rows: Iterable[str] = self._rows.values()
        else:
            rows = [self._rows[name] for name in names if name in self._rows]
        if indent:
            return "{\n\t\t" + ",\n\t\t".join(rows) + "\n\t}"
        return "{" + ",".join(rows) + "}"
