"""Rows of one form are taken apart, and packed, as one by one."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.wire.rows import are_numbers, columns_of, pack_rows

COUNTS = st.integers(1, 5) | st.integers(30, 34) | st.integers(63, 66)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), COUNTS, st.integers(0, 3), st.data())
def test_rows_are_taken_apart_as_one_by_one(
    sizes: list[int], count: int, before: int, data: st.DataObject
) -> None:
    form = "".join(f"{size}s" for size in sizes)
    length = before + count * sum(sizes)
    buffer = data.draw(st.binary(min_size=length, max_size=length)) + b"more"
    row = struct.Struct(">" + form)
    rows = [row.unpack_from(buffer, before + n * row.size) for n in range(count)]
    assert columns_of(form, len(sizes), buffer, before, count) == [*zip(*rows, strict=True)]


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 100])
def test_rows_are_packed_as_one_by_one(count: int) -> None:
    numbers, texts = range(-3, count - 3), [bytes((n % 256, n // 256)) for n in range(count)]
    packed = pack_rows("2sqIx2s", (b"ab", 0, 7, b""), {1: numbers, 3: texts}, count)
    one = struct.Struct(">2sqIx2s").pack
    rows = [one(b"ab", number, 7, text) for number, text in zip(numbers, texts, strict=True)]
    assert packed == b"".join(rows)


def test_too_few_bytes_are_no_rows() -> None:
    with pytest.raises(struct.error):
        columns_of("2s", 1, b"abc", 0, 2)


def test_a_column_has_a_value_for_each_row() -> None:
    with pytest.raises(ValueError, match="3"):
        pack_rows("qq", (0, 0), {1: range(2)}, 3)


def test_numbers_have_no_needless_zeros() -> None:
    assert are_numbers([(b"0", b"7"), (b"10", b"99")])
    for column in ((b"10", b"07"), (b"00",), (b"1a",), (b"+1",), (b"",), (b"\xb2",)):
        assert not are_numbers([(b"0",), column])
