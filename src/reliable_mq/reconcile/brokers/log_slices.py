"""Slices of one buffer as Arrow arrays, for the texts of many records at once. Pure.

Of a record it knows only that properties are `name 0x01 value 0x02`, repeated
(`wire/properties.py`).
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reliable_mq.reconcile.brokers.log_scan import value_begin
from reliable_mq.wire.message_id import LEDGER_ID_LENGTH_MAX

Ints = NDArray[np.int64]

_SEPARATOR = 0x02
_PRINTABLE_FROM, _PRINTABLE_TO = 0x20, 0x7E


def slices(buffer: Any, begins: Ints, ends: Ints) -> pa.LargeBinaryArray:
    """Return copies of parts of a buffer. Each part is after the part before it."""
    if not len(begins):
        return pa.array([], pa.large_binary())
    offsets = np.empty(2 * len(begins), np.int64)
    offsets[0::2], offsets[1::2] = begins, ends
    whole = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(offsets) - 1,
        [None, pa.py_buffer(offsets), pa.py_buffer(buffer)],
    )
    return whole.take(pa.array(np.arange(0, len(offsets) - 1, 2)))


def property_slices(
    properties: pa.LargeBinaryArray, name: str
) -> tuple[pa.LargeBinaryArray, NDArray[np.bool_]]:
    """Return the values of one property, and which texts have it. A missing value is empty.

    Args:
        properties: stored texts of properties, without nulls.
        name: the name of the property. If it occurs more than once, the last value counts.
    """
    mark = f"{name}\x01".encode()
    count = len(properties)
    if not count:
        return properties, np.zeros(0, np.bool_)
    offsets = np.frombuffer(properties.buffers()[1], np.int64)[
        properties.offset : properties.offset + count + 1
    ]
    text = properties.buffers()[2]
    data = np.frombuffer(text, np.uint8) if text is not None else np.zeros(0, np.uint8)
    at = pc.find_substring(properties, mark).to_numpy(zero_copy_only=False).astype(np.int64)
    marks = pc.count_substring(properties, mark).to_numpy(zero_copy_only=False)
    begins = offsets[:-1] + at
    # A name is at the start of the text or after a separator. Otherwise it is the end of another
    # name.
    is_name = (at == 0) | (data[np.maximum(begins - 1, 0)] == _SEPARATOR if len(data) else False)
    found = (at >= 0) & is_name
    values = np.where(found, begins + len(mark), offsets[:-1])
    for index in np.flatnonzero(marks > 1).tolist():
        low, high = int(offsets[index]), int(offsets[index + 1])
        place = value_begin(data[low:high].tobytes(), mark)
        found[index] = place >= 0
        values[index] = low + max(place, 0)
    separators = np.flatnonzero(data == _SEPARATOR)
    following = np.append(separators, len(data))[np.searchsorted(separators, values)]
    ends = np.where(found, np.minimum(following, offsets[1:]), values)
    return slices(text if text is not None else b"", values, ends), found & (ends > values)


def _text_of(values: pa.LargeBinaryArray) -> NDArray[np.uint8]:
    _, offsets, text = values.buffers()
    if text is None or not len(values):
        return np.zeros(0, np.uint8)
    begin, end = np.frombuffer(offsets, np.int64)[values.offset :][: len(values) + 1][[0, -1]]
    return np.frombuffer(text, np.uint8)[begin:end]


def is_ascii(values: pa.LargeBinaryArray) -> bool:
    """Return whether every byte of the texts is an ASCII character."""
    return not (_text_of(values) & 0x80).any()


def is_plain(values: pa.LargeBinaryArray) -> bool:
    """Return True only if `ledger_id` changes none of these ids."""
    text = _text_of(values)
    printable = (text - np.uint8(_PRINTABLE_FROM)) <= _PRINTABLE_TO - _PRINTABLE_FROM
    lengths = pc.binary_length(values)
    return bool(printable.all()) and (pc.max(lengths).as_py() or 0) <= LEDGER_ID_LENGTH_MAX
