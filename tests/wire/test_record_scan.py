"""Looking over records without decoding them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import RECORD

from reliable_mq.wire.record import RECORD_SIZE_MIN, Record
from reliable_mq.wire.record_encode import encode_record
from reliable_mq.wire.record_scan import holds_records, holds_records_of

RECORDS = st.lists(RECORD, min_size=1, max_size=5) | st.builds(
    lambda record, count: [record] * count, RECORD, st.integers(1, 5)
)


@given(RECORDS, st.data())
def test_records_are_where_their_sizes_say_and_damage_of_any_is_seen(
    records: list[Record], data: st.DataObject
) -> None:
    parts = [encode_record(record) for record in records]
    buffer, sizes = b"".join(parts), tuple(map(len, parts))
    assert holds_records_of(buffer, sizes)
    assert holds_records(buffer, len(sizes))

    begin = sum(sizes[: data.draw(st.integers(0, len(sizes) - 1))])
    at = begin + data.draw(st.integers(0, 7))  # in a size or a magic
    flip = data.draw(st.sampled_from([1, 2, 16, 128, 255]))
    spoiled = buffer[:at] + bytes([buffer[at] ^ flip]) + buffer[at + 1 :]
    assert not holds_records_of(spoiled, sizes)


@pytest.mark.parametrize("sizes", [(RECORD_SIZE_MIN - 1,), (0,), (-1, 1), (200,), (100, 100)])
def test_sizes_that_no_records_have_are_refused(sizes: tuple[int, ...]) -> None:
    assert not holds_records_of(bytes(max(0, sum(sizes))), sizes)
    assert not holds_records_of(b"", sizes)
