"""The JSON of a table, row by row: a row is encoded when it changes; the whole is only joined.

Each change of one topic writes the whole file, as Apache's broker expects. With ten thousand topics
the unchanged rows must cost almost nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice

import msgspec

from reliable_mq.broker_core.store.disk import RowsText
from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import TABLE_SIZE_MAX
from reliable_mq.wire.long_frame import LongBody

_ROWS_AT_ONCE = 256

_encoder = msgspec.json.Encoder(order="sorted")


def plain_json(value: object) -> str:
    """Return a value, whose keys are all text, as JSON with sorted names."""
    return _encoder.encode(value).decode()


def _row(name: str, value: object) -> str:
    return f"{plain_json(name)}:{plain_json(value)}"


def _more_of(row: str) -> int:
    """Return how many bytes a row has more than characters."""
    return 0 if row.isascii() else len(row.encode()) - len(row)


def differences(
    known: Mapping[str, object], wanted: Mapping[str, object]
) -> tuple[list[str], list[str]]:
    """Return the names that are new or other in `wanted`, and those that are not in it."""
    other = [name for name, value in wanted.items() if known.get(name) != value]
    return other, [name for name in known if name not in wanted]


class JsonRows:
    """Encoded rows by name, in order of insertion.

    Invariant J1: there is one row for each entry of the owner's table.
    Invariant J2: all rows together have `_size` characters, and `_more` more bytes.
    """

    def __init__(self) -> None:
        self._rows: dict[str, str] = {}
        self._size = 0
        self._more = 0
        self._sorted: list[str] | None = None  # the names; None after a change of names

    def check(self, table: Sized) -> None:
        """J1 and J2; see the class."""
        if len(self._rows) != len(table):
            raise InvariantBroken(f"J1: {len(self._rows)} rows for {len(table)} entries")
        if sum(map(len, self._rows.values())) != self._size:
            raise InvariantBroken(f"J2: {self._size} characters are counted")
        if sum(map(_more_of, self._rows.values())) != self._more:
            raise InvariantBroken(f"J2: {self._more} more bytes are counted")

    @property
    def size(self) -> int:
        """Characters of all rows together."""
        return self._size

    def has_room(self, name: str, value: object) -> bool:
        """Whether a peer may set this row: the table is not full, or the row gets no longer."""
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
        self._more += _more_of(row) - _more_of(known or "")
        self._rows[name] = row

    def remove(self, name: str) -> None:
        """Remove a row, if it exists."""
        row = self._rows.pop(name, None)
        if row is not None:
            self._size -= len(row)
            self._more -= _more_of(row)
            self._sorted = None

    def names(self) -> Sequence[str]:
        """Return the names of all rows, sorted. The caller must not change the list."""
        if self._sorted is None:
            self._sorted = sorted(self._rows)
        return self._sorted

    def parts(self, names: Iterable[str] | None, size_max: int) -> Iterator[list[str]]:
        """Yield lists of names. The rows of a list have at most `size_max` characters together.

        A longer row has a list of its own.

        Args:
            names: the rows; None for all. Rows that are removed meanwhile are skipped.
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

    def indented(self, head: str, tail: str) -> RowsText:
        """Return all rows as one JSON object between two texts, a row a line, two tabs deep."""
        return RowsText(head + "{\n\t\t", self._now(), ",\n\t\t", "\n\t}" + tail)

    def _now(self) -> Collection[str]:
        """Return all rows as they are now.

        The garbage collector looks at no dictionary of texts. At a tuple of them it looks once, for
        2 ms with 100,000 rows, and at a list again and again.
        """
        return self._rows.copy().values()

    def table(self, names: Iterable[str] | None = None) -> str:
        """Return the rows as one JSON object.

        Args:
            names: the rows, None, the default, for all. Unknown names are skipped.
        """
        if names is None:
            rows: Iterable[str] = self._rows.values()
        else:
            rows = [self._rows[name] for name in names if name in self._rows]
        return "{" + ",".join(rows) + "}"

    def long_table(self, head: bytes, tail: bytes) -> LongBody:
        """Return all rows as one JSON object between two texts; they are joined bit by bit."""
        rows = self._now()
        size = self._size + self._more + max(len(rows) - 1, 0) + len(head) + len(tail) + 2
        return LongBody(size, _pieces(head + b"{", rows, b"}" + tail))


def _pieces(head: bytes, rows: Collection[str], tail: bytes) -> Iterator[bytes]:
    begin, left = head, iter(rows)
    while some := list(islice(left, _ROWS_AT_ONCE)):
        yield begin + ",".join(some).encode()
        begin = b","
    yield tail if rows else head + tail
