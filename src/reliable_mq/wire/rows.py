"""Rows of one form, one after another in the bytes: each call takes apart, or packs, all of them.

Receives how a row is made, for `struct`. A step for each row costs more than its bytes do. So the
forms of up to 32 rows are kept, and more rows take several calls.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

_TOGETHER_MAX = 32  # rows of one call; the form of so many has some KB
_FORMS_MAX = 256  # of 13 KB at most; few have so much


@lru_cache(maxsize=_FORMS_MAX)
def _rows(form: str, count: int) -> struct.Struct:
    return struct.Struct(">" + form * count)


def columns_of(
    form: str, width: int, buffer: bytes, at: int, count: int
) -> list[tuple[bytes, ...]]:
    """Return the values of `count` rows from `at` on, a column for each value of a row.

    Args:
        form: of a row; each value is bytes.
        width: how many values a row has.
        buffer: bytes with the rows.
        at: where the first one begins.
        count: how many rows there are.
    """
    if count <= _TOGETHER_MAX:
        values = _rows(form, count).unpack_from(buffer, at)
    else:
        values, size = (), _rows(form, 1).size
        some = [
            _rows(form, min(_TOGETHER_MAX, count - n)).unpack_from(buffer, at + n * size)
            for n in range(0, count, _TOGETHER_MAX)
        ]
        values = tuple(value for each in some for value in each)
    return [values[n::width] for n in range(width)]


def are_numbers(columns: Iterable[Sequence[bytes]]) -> bool:
    """Whether all values are numbers without needless zeros; those of a column have one length."""
    for column in columns:
        digits, size = b"".join(column), len(column[0])
        if not digits.isdigit() or (size > 1 and b"0" in digits[::size]):
            return False
    return True


def pack_rows(
    form: str, row: Sequence[object], columns: Mapping[int, Sequence[object]], count: int
) -> bytes:
    """Return `count` rows.

    Args:
        form: of a row.
        row: its values; what stands for a column does not count.
        columns: the values that differ, by their place in a row.
        count: how many rows there are.
    """
    width = len(row)
    values: list[Any] = [*row] * count
    for n, column in columns.items():
        values[n::width] = column
    if count <= _TOGETHER_MAX:
        return _rows(form, count).pack(*values)
    return b"".join(
        _rows(form, min(_TOGETHER_MAX, count - n)).pack(
            *values[n * width : (n + _TOGETHER_MAX) * width]
        )
        for n in range(0, count, _TOGETHER_MAX)
    )
