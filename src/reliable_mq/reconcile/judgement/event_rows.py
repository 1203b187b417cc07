"""Encode events as rows of three columns for Spark. Pure.

Spark copies rows value by value, so every column costs time. Therefore all columns of fixed size
are packed into one binary value (`FIXED`; `NONE` stands for null). The names are one JSON text,
because few combinations of names occur.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from reliable_mq.reconcile.judgement.events import EVENTS

NONE = {1: -(2**7), 4: -(2**31), 8: -(2**63)}
"""The number that stands for null, by the size of the column in bytes."""

NAMES = tuple(field.name for field in EVENTS if pa.types.is_string(field.type))
_FIELDS = tuple(field for field in EVENTS if field.name not in (*NAMES, "id"))
_LATER_FIELDS = ("digest_1", "digest_2")
"""Fields of a later release. They are after all others: see `PADDING`."""
FIXED = np.dtype(
    [
        (field.name, f"<i{field.type.bit_width // 8}")
        for field in sorted(
            _FIELDS, key=lambda field: (field.name in _LATER_FIELDS, -field.type.bit_width)
        )
    ]
)
PADDING = NONE[8].to_bytes(8, "little", signed=True) * len(_LATER_FIELDS)
"""The bytes that a body of an older release lacks at its end. Increments carry such bodies."""
EVENT_ROWS = pa.schema([("id", pa.binary()), ("body", pa.binary()), ("names", pa.string())])


def numbers(column: pa.Array) -> np.ndarray:
    """Return a column of numbers or times as numpy integers. Null becomes `NONE`."""
    size = column.type.bit_width // 8
    values = column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column
    found: np.ndarray = values.fill_null(NONE[size]).to_numpy()
    return found


def column_of(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return numpy integers as an Arrow column of numbers or times. `NONE` becomes null."""
    is_null = values == NONE[values.dtype.itemsize]
    column = pa.array(values, mask=is_null if is_null.any() else None)
    return column.view(kind) if pa.types.is_timestamp(kind) else column.cast(kind)


def event_rows(events: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of `EVENTS` as rows of `EVENT_ROWS`."""
    count = events.num_rows
    body = np.empty(count, FIXED)
    for field in _FIELDS:
        body[field.name] = numbers(events.column(field.name))
    columns = [events.column("id"), packed_bodies(body), _joined(events)]
    return pa.record_batch(columns, schema=EVENT_ROWS)


def packed_bodies(body: np.ndarray) -> pa.Array:
    """Return values of `FIXED` as the column `body`, without a copy."""
    offsets = np.arange(len(body) + 1, dtype=np.int32) * FIXED.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(body))]
    return pa.Array.from_buffers(pa.binary(), len(body), buffers)


def packed_names(names: Mapping[str, Sequence[str | None]]) -> pa.Array:
    """Return names as texts of the column `names`, which `names_of` decodes."""
    rows = zip(*(names[name] for name in NAMES), strict=True)
    return pa.array([json.dumps(row, ensure_ascii=False) for row in rows], pa.string())


def _joined(events: pa.RecordBatch) -> pa.Array:
    """Return the names of each event as one JSON text. Each combination is encoded once."""
    columns = [events.column(name).dictionary_encode() for name in NAMES]
    place = np.zeros(events.num_rows, np.int64)
    for column in columns:  # one number for each combination of codes
        codes = column.indices.fill_null(-1).to_numpy()
        place = place * (len(column.dictionary) + 1) + codes + 1
        place = pa.array(place).dictionary_encode().indices.to_numpy()
        place = place.astype(np.int64)
    firsts = np.zeros(int(place.max(initial=-1)) + 1, np.int64)
    firsts[place[::-1]] = np.arange(events.num_rows)[::-1]
    chosen = pa.array(firsts)
    values = [column.take(chosen).to_pylist() for column in columns]
    texts = [json.dumps(names, ensure_ascii=False) for names in zip(*values, strict=True)]
    return pa.array(texts, pa.string()).take(pa.array(place))


def bodies_of(bodies: pa.Array) -> np.ndarray:
    """Return the values of the column `body` as a numpy array of `FIXED`, without a copy."""
    data = np.frombuffer(bodies.buffers()[2] or b"", np.uint8)
    (first,) = np.frombuffer(bodies.buffers()[1] or bytes(4), np.int32)[bodies.offset :][:1]
    return data[first : first + len(bodies) * FIXED.itemsize].view(FIXED)


def names_of(texts: Iterable[str]) -> dict[str, list[str | None]]:
    """Decode values of the column `names`: return the names of each, by column."""
    rows = [json.loads(text) for text in texts]
    return {name: [row[at] for row in rows] for at, name in enumerate(NAMES)}


def events_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of `EVENTS` from rows of `EVENT_ROWS`."""
    body = bodies_of(rows.column("body"))
    encoded = rows.column("names").dictionary_encode()
    names = names_of(encoded.dictionary.to_pylist())
    columns = {"id": rows.column("id")}
    columns |= {field.name: column_of(body[field.name], field.type) for field in _FIELDS}
    columns |= {
        name: pa.array(values, pa.string()).take(encoded.indices) for name, values in names.items()
    }
    return pa.record_batch([columns[field.name] for field in EVENTS], schema=EVENTS)
