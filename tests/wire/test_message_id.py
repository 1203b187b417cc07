"""Offset message ids, and what ledgers call messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import I32, I64

from reliable_mq.errors import RecordError
from reliable_mq.wire.message_id import (
    LEDGER_ID_LENGTH_MAX,
    decode_offset_message_id,
    encode_offset_message_id,
    is_usual_id,
    ledger_id,
)


@given(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), I32, I64)
def test_decode_after_encode_is_the_identity(ip: bytes, port: int, offset: int) -> None:
    text = encode_offset_message_id(ip, port, offset)

    assert decode_offset_message_id(text) == decode_offset_message_id(text.lower())
    assert decode_offset_message_id(text) == (ip, port, offset)


def test_ids_are_those_of_apache() -> None:
    loopback, loopback_v6 = bytes((127, 0, 0, 1)), bytes(15) + b"\1"

    assert encode_offset_message_id(loopback, 10_911, 0) == "7F00000100002A9F0000000000000000"
    assert encode_offset_message_id(loopback, 10_911, 255) == "7F00000100002A9F00000000000000FF"
    assert (
        encode_offset_message_id(loopback_v6, 10_911, 255)
        == "0000000000000000000000000000000100002A9F00000000000000FF"
    )


@pytest.mark.parametrize("text", ["", "0", "G" * 32, "7F" * 15, "7F" * 17, "7F " * 16, "é" * 32])
def test_what_is_no_id_is_a_record_error(text: str) -> None:
    with pytest.raises(RecordError, match="not an offset message id"):
        decode_offset_message_id(text)


@pytest.mark.parametrize("size", [32, 56])
def test_an_id_that_clients_or_brokers_make_is_known_as_it_is(size: int) -> None:
    name = ("7F000001" * 7)[:size]
    assert is_usual_id(name)
    assert ledger_id(name) == name
    assert not is_usual_id(name.lower())
    assert not is_usual_id(name + "\n")
    assert not is_usual_id(name[1:])


@pytest.mark.parametrize("name", ["A", "order 7", "é" * 64, "7F00000100002A9F0000000000000000"])
def test_what_a_table_can_hold_is_called_as_its_producer_called_it(name: str) -> None:
    assert ledger_id(name) == name


def test_what_no_table_can_hold_is_called_by_a_digest_of_its_own() -> None:
    names = ["x" * 65, "x" * 66, "a\0b", "a\nb", "\0", "\ud800"]

    digests = [ledger_id(name) for name in names]

    assert len({*digests}) == len(names)
    assert all(len(each) <= LEDGER_ID_LENGTH_MAX and each.isprintable() for each in digests)
    assert [ledger_id(each) for each in digests] == digests
