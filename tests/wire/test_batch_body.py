"""The body of a batch send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import I32, damaged

from reliable_mq.errors import MessageRefused, RecordError
from reliable_mq.wire.batch_body import BatchItem, decode_batch, encode_batch

ITEMS = st.lists(
    st.builds(BatchItem, I32, st.binary(max_size=40), st.binary(max_size=40)), max_size=4
)

# What Apache's MessageDecoder.encodeMessages 5.4.0 wrote for two messages.
APACHE_BATCH = bytes.fromhex(
    "00000031 00000000 00000000 00000000 00000003 6f6e65"
    "0018 4b455953016b02 57414954017472756502 54414753014102"
    "00000023 00000000 00000000 00000009 00000003 74776f 000a 57414954017472756502"
)


@given(ITEMS)
def test_decode_after_encode_is_the_identity(items: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(items)) == items


# Items of one form, which are read in one go.
ALIKE = st.integers(0, 9).flatmap(
    lambda size: st.lists(
        st.builds(
            BatchItem, I32, st.binary(min_size=size, max_size=size), st.just(b"WAIT\1true\2")
        ),
        min_size=1,
        max_size=5,
    )
)


@given(ALIKE)
def test_a_batch_whose_items_are_alike_is_read_the_same(items: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(items)) == items


def test_items_that_only_add_up_like_equals_are_read_for_what_they_are() -> None:
    items = [BatchItem(0, b"one", b"ab"), BatchItem(1, b"seven", b""), BatchItem(2, b"", b"abcde")]
    assert len({len(encode_batch([item])) for item in items}) == 1

    assert decode_batch(encode_batch(items)) == items


def test_a_batch_has_the_bytes_that_apache_writes() -> None:
    items = [
        BatchItem(0, b"one", b"KEYS\1k\2WAIT\1true\2TAGS\1A\2"),
        BatchItem(9, b"two", b"WAIT\1true\2"),
    ]

    assert encode_batch(items) == APACHE_BATCH
    assert decode_batch(APACHE_BATCH) == items


@given(st.binary(max_size=80) | damaged(ITEMS.map(encode_batch)) | damaged(ALIKE.map(encode_batch)))
def test_damaged_batches_give_items_or_a_record_error(body: bytes) -> None:
    try:
        items = decode_batch(body)
    except RecordError:
        return
    assert len(encode_batch(items)) == len(body)


@pytest.mark.parametrize("at", [0, 16, 23])
def test_a_batch_whose_sizes_lie_is_a_record_error(at: int) -> None:
    with pytest.raises(RecordError):
        decode_batch(APACHE_BATCH[:at] + b"\xff\xff\xff\xff" + APACHE_BATCH[at + 4 :])


def test_properties_that_no_record_holds_are_refused() -> None:
    with pytest.raises(MessageRefused, match="32768 bytes"):
        encode_batch([BatchItem(0, b"", bytes(32_768))])
