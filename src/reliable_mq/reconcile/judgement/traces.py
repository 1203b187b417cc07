"""Traces: events as numpy columns, with a number for every message and every name. Pure.

The judgement computes with traces. In columns of numbers, null is `NONE` of the column's size. This
is the smallest number, so a maximum ignores it. Among the codes of names, null is -1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from reliable_mq.reconcile.judgement.event_rows import NAMES, bodies_of, names_of, numbers
from reliable_mq.reconcile.judgement.events import EVENTS

NO_NUMBER = np.int32(-(2**31))


@dataclass(frozen=True)
class NameColumn:
    """A column of names: `codes` are indexes of the sorted `values`. The code -1 is null."""

    codes: np.ndarray
    values: tuple[str, ...]

    def code(self, name: str) -> int:
        """Return the code of a name, or -2 if the column does not have the name."""
        return self.values.index(name) if name in self.values else -2


@dataclass(frozen=True)
class Traces:
    """All events of messages. `message` has the index in `ids` for each event."""

    ids: pa.Array
    message: np.ndarray
    columns: Mapping[str, np.ndarray]
    names: Mapping[str, NameColumn]

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def __len__(self) -> int:
        return len(self.message)


def traces_of(events: pa.Table) -> Traces:
    """Return events (`EVENTS`, none of them damage) as traces."""
    chunk = events.combine_chunks()
    columns = {
        field.name: numbers(_one(chunk, field.name))
        for field in EVENTS
        if field.name not in (*NAMES, "id")
    }
    names = {}
    for name in NAMES:
        encoded = _one(chunk, name).dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy()
        names[name] = _sorted_names(codes, encoded.dictionary.to_pylist())
    return Traces(*_messages(_one(chunk, "id")), columns, names)


def traces_of_rows(rows: pa.Table) -> Traces:
    """Return encoded events (`EVENT_ROWS`), as Spark has them, as traces."""
    chunk = rows.combine_chunks()
    body = bodies_of(_one(chunk, "body"))
    encoded = _one(chunk, "names").dictionary_encode()
    place = encoded.indices.to_numpy()
    names = {}
    for name, values in names_of(encoded.dictionary.to_pylist()).items():
        column = pa.array(values, pa.string()).dictionary_encode()
        codes = column.indices.fill_null(-1).to_numpy()
        few = _sorted_names(codes, column.dictionary.to_pylist())
        names[name] = NameColumn(few.codes[place], few.values)
    columns = {name: np.ascontiguousarray(body[name]) for name in body.dtype.names or ()}
    return Traces(*_messages(_one(chunk, "id")), columns, names)


def _one(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _messages(ids: pa.Array) -> tuple[pa.Array, np.ndarray]:
    encoded = ids.dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _sorted_names(codes: np.ndarray, values: Iterable[str]) -> NameColumn:
    """Sort names, so that the codes do not depend on the order of the events."""
    unsorted = list(values)
    order = sorted(range(len(unsorted)), key=unsorted.__getitem__)
    new = np.empty(len(unsorted) + 1, np.int32)
    new[order] = np.arange(len(unsorted), dtype=np.int32)
    new[-1] = -1  # the code -1 stays -1
    return NameColumn(new[codes], tuple(unsorted[at] for at in order))


def with_names(names: NameColumn, more: Iterable[str]) -> NameColumn:
    """Return `names` with further possible values."""
    values = tuple(sorted({*names.values, *more}))
    if values == names.values:
        return names
    new = np.array([*(values.index(name) for name in names.values), -1], np.int32)
    return NameColumn(new[names.codes], values)


def values_at(column: np.ndarray, places: np.ndarray, otherwise: int) -> np.ndarray:
    """Return the values of a column at the indexes `places`, and `otherwise` for the index -1."""
    if len(column) == 0:
        return np.full(len(places), otherwise, column.dtype)
    return np.where(places >= 0, column[places], np.asarray(otherwise, column.dtype))


def firsts_of(groups: np.ndarray, count: int, order: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return for each of `count` groups its first event of `chosen`, or -1.

    Args:
        groups: the group of each event in `chosen`.
        order: the sort key of each event in `chosen`.
        chosen: indexes of events.
    """
    ranked = np.lexsort((order, groups)) if has_twins(groups, count) else np.arange(len(chosen))
    found = np.full(count, -1, np.int64)
    found[groups[ranked][::-1]] = chosen[ranked][::-1]
    return found


def has_twins(groups: np.ndarray, count: int) -> bool:
    """Return whether one of `count` groups occurs more than once."""
    return bool(np.bincount(groups, minlength=count).max(initial=0) > 1)


def spread(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the indexes of many ranges one after another. Each has a start and a count."""
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    places: np.ndarray = np.repeat(starts, counts) + within
    return places


def text_column(names: NameColumn, codes: np.ndarray) -> pa.Array:
    """Return codes of `names` as an Arrow dictionary column. The code -1 becomes null."""
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names.values, pa.string()))


def is_in(names: NameColumn, wanted: frozenset[str]) -> np.ndarray:
    """Return for each code of `names` whether its value is in `wanted`. For -1 it is False."""
    return np.array([*(value in wanted for value in names.values), False], bool)
