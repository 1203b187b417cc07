"""The nouns: message ids sort by time, queues as Apache's client sorts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.errors import UsageError
from reliable_mq.message import Message, MessageQueue, SendStatus, new_message_id

TIME_MS = st.integers(0, 2**48 - 1)
RANDOM = st.binary(min_size=10, max_size=10)


def test_a_message_id_is_laid_out_as_rfc_9562_says() -> None:
    # unix_ts_ms 48 bits, version 7, 12 random bits, variant 0b10, 62 random bits
    assert new_message_id(0x017F22E279B0, b"\xff" * 10) == "017F22E279B07FFFBFFFFFFFFFFFFFFF"
    assert new_message_id(0x017F22E279B0, bytes(10)) == "017F22E279B070008000000000000000"


@given(TIME_MS, TIME_MS, RANDOM, RANDOM)
def test_ids_sort_by_time(first_ms: int, second_ms: int, first: bytes, second: bytes) -> None:
    ids = (new_message_id(first_ms, first), new_message_id(second_ms, second))

    assert all(len(text) == 32 and text == text.upper() for text in ids)
    if first_ms != second_ms:
        assert (ids[0] < ids[1]) == (first_ms < second_ms)


@given(TIME_MS, st.integers(0, 2**74 - 1), st.integers(0, 2**74 - 1))
def test_different_random_bits_give_different_ids(now_ms: int, one: int, other: int) -> None:
    def name(bits: int) -> str:
        # The id takes the 12 highest and the 62 lowest of the 80 bits.
        return new_message_id(now_ms, (bits >> 62 << 68 | bits & (1 << 62) - 1).to_bytes(10))

    assert (name(one) == name(other)) == (one == other)


@pytest.mark.parametrize("size", [0, 9, 11])
def test_an_id_takes_exactly_ten_random_bytes(size: int) -> None:
    with pytest.raises(UsageError, match="ten random bytes"):
        new_message_id(0, bytes(size))


def test_queues_sort_by_topic_then_broker_then_number() -> None:
    queues = [MessageQueue("a", "x", 10), MessageQueue("a", "y", 2), MessageQueue("b", "x", 1)]

    assert sorted((queues[2], queues[1], queues[0])) == queues
    assert MessageQueue("a", "x", 9) < MessageQueue("a", "x", 10)


def test_a_message_cannot_be_changed_and_does_not_share_its_properties() -> None:
    message = Message(topic="t", body=b"b")

    with pytest.raises(AttributeError):
        message.topic = "u"  # type: ignore[misc]
    assert message.properties is not Message(topic="t", body=b"b").properties


def test_a_send_status_is_known_by_the_code_of_the_reply() -> None:
    assert {SendStatus(code).name for code in (0, 10, 11, 12)} == {
        *("SEND_OK", "FLUSH_DISK_TIMEOUT", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT")
    }
