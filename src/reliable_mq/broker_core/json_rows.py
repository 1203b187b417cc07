"""The JSON of a table, row by row: a row is encoded when it changes; the whole is only joined.

Each change of one topic writes the whole file, as Apache's broker expects. With ten thousand topics
the unchanged rows must cost almost nothing. So rows that were added one after another are in one
bundle, and the joined text of a bundle is kept until one of its rows changes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain

import msgspec

from reliable_mq.broker_core.store.disk import JoinedRows, RowsText
from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import TABLE_SIZE_MAX
from reliable_mq.wire.long_frame import LongBody

_ROWS_OF_BUNDLE = 256

_BETWEEN = ",\n\t\t"

_encoder = msgspec.json.Encoder(order="sorted")


def plain_json(value: object) -> str:
    """Return a value, whose keys are all text, as JSON with sorted names."""
    return _encoder.encode(value).decode()


def _encoded(name: str, value: object) -> str:
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


class _Bundle:
    """Rows by name. They are joined at most once between two changes."""

    __slots__ = ("_joined", "rows")

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self._joined: JoinedRows | None = None

    def set(self, name: str, row: str) -> None:
        """Add or replace a row."""
        self.rows[name] = row
        self._joined = None

    def remove(self, name: str) -> str:
        """Remove a row, and return it."""
        self._joined = None
        return self.rows.pop(name)

    def now(self) -> JoinedRows:
        """Return the rows as they are now. The first write of them joins them."""
        if self._joined is None:
            self._joined = JoinedRows(tuple(self.rows.values()), _BETWEEN)
        return self._joined


class JsonRows:
    """Encoded rows by name, in order of insertion.

    Invariant J1: there is one row for each entry of the owner's table.
    Invariant J2: all rows together have `_size` characters, and `_more` more bytes.
    Invariant J4: each row is in the bundle of its name, and no bundle is empty.
    """

    def __init__(self) -> None:
        self._bundles: list[_Bundle] = []
        self._bundle_of: dict[str, _Bundle] = {}  # by the name of a row
        self._size = 0
        self._more = 0
        self._sorted: list[str] | None = None  # the names; None after a change of names

    def check(self, table: Sized) -> None:
        """J1, J2 and J4; see the class."""
        if len(self._bundle_of) != len(table):
            raise InvariantBroken(f"J1: {len(self._bundle_of)} rows for {len(table)} entries")
        rows = list(self._rows())
        if sum(map(len, rows)) != self._size:
            raise InvariantBroken(f"J2: {self._size} characters are counted")
        if sum(map(_more_of, rows)) != self._more:
            raise InvariantBroken(f"J2: {self._more} more bytes are counted")
        places = {name: bundle for bundle in self._bundles for name in bundle.rows}
        if places != self._bundle_of or not all(bundle.rows for bundle in self._bundles):
            raise InvariantBroken(f"J4: {len(places)} rows are in {len(self._bundles)} bundles")

    def _rows(self) -> Iterator[str]:
        return chain.from_iterable(bundle.rows.values() for bundle in self._bundles)

    def _row(self, name: str) -> str | None:
        bundle = self._bundle_of.get(name)
        return bundle.rows[name] if bundle is not None else None

    @property
    def size(self) -> int:
        """Characters of all rows together."""
        return self._size

    def has_room(self, name: str, value: object) -> bool:
        """Whether a peer may set this row: the table is not full, or the row gets no longer."""
        if self._size < TABLE_SIZE_MAX:
            return True
        known = self._row(name)
        return known is not None and len(_encoded(name, value)) <= len(known)

    def set(self, name: str, value: object) -> None:
        """Add or replace a row."""
        row = _encoded(name, value)
        known = self._row(name)
        if known is None:
            self._sorted = None
            if not self._bundles or len(self._bundles[-1].rows) >= _ROWS_OF_BUNDLE:
                self._bundles.append(_Bundle())
            self._bundle_of[name] = self._bundles[-1]
        self._size += len(row) - len(known or "")
        self._more += _more_of(row) - _more_of(known or "")
        self._bundle_of[name].set(name, row)

    def remove(self, name: str) -> None:
        """Remove a row, if it exists."""
        bundle = self._bundle_of.pop(name, None)
        if bundle is not None:
            row = bundle.remove(name)
            if not bundle.rows:
                self._bundles.remove(bundle)
            self._size -= len(row)
            self._more -= _more_of(row)
            self._sorted = None

    def names(self) -> Sequence[str]:
        """Return the names of all rows, sorted. The caller must not change the list."""
        if self._sorted is None:
            self._sorted = sorted(self._bundle_of)
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
        for name in list(self._bundle_of if names is None else names):
            row = self._row(name)
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
        parts = [bundle.now() for bundle in self._bundles]
        return RowsText(head + "{\n\t\t", parts, _BETWEEN, "\n\t}" + tail)

    def table(self, names: Iterable[str] | None = None) -> str:
        """Return the rows as one JSON object.

        Args:
            names: the rows, None, the default, for all. Unknown names are skipped.
        """
        rows = self._rows() if names is None else filter(None, map(self._row, names))
        return "{" + ",".join(rows) + "}"

    def long_table(self, head: bytes, tail: bytes) -> LongBody:
        """Return all rows as one JSON object between two texts; they are joined bit by bit."""
        count = len(self._bundle_of)
        size = self._size + self._more + max(count - 1, 0) + len(head) + len(tail) + 2
        bundles = [tuple(bundle.rows.values()) for bundle in self._bundles]
        return LongBody(size, _pieces(head + b"{", bundles, b"}" + tail))


def _pieces(head: bytes, bundles: Sequence[Sequence[str]], tail: bytes) -> Iterator[bytes]:
    begin = head
    for rows in bundles:
        yield begin + ",".join(rows).encode()
        begin = b","
    yield tail if bundles else head + tail
