"""Recall handles: what is written is read, as Apache's clients write it, or it is none."""

import base64

import pytest

from reliable_mq.wire.recall_handle import (
    RecallHandle,
    decode_recall_handle,
    encode_recall_handle,
)

HANDLE = RecallHandle("orders", "broker-a", "1700000000123", "7F0000010001")


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize("length", range(8))
def test_a_handle_is_read_with_and_without_its_padding(length: int) -> None:
    handle = HANDLE._replace(unique_key="K" * (length + 1))
    text = encode_recall_handle(handle)
    assert decode_recall_handle(text) == handle
    assert decode_recall_handle(text.rstrip("=")) == handle


def test_a_handle_that_lost_half_of_its_padding_is_none() -> None:
    whole = next(
        text
        for length in range(1, 4)
        if (text := encode_recall_handle(HANDLE._replace(unique_key="K" * length))).endswith("==")
    )
    assert decode_recall_handle(whole[:-1]) is None


def test_a_handle_has_apaches_form() -> None:
    assert encode_recall_handle(HANDLE) == encoded("v1 orders broker-a 1700000000123 7F0000010001")


def test_what_follows_the_four_fields_is_left_out() -> None:
    assert decode_recall_handle(encoded("v1 t b 1 k more")) == RecallHandle("t", "b", "1", "k")


def test_a_handle_may_hold_what_only_the_alphabet_of_urls_has() -> None:
    handle = HANDLE._replace(topic="ÿÿ>?~ü")
    text = encode_recall_handle(handle)
    assert set(text) & set("-_")
    assert decode_recall_handle(text) == handle


@pytest.mark.parametrize(
    "text",
    ["", "=", "a", "!!!!", "ä", encoded("v2 t b 1 k"), encoded("v1 t b 1"), encoded("v1")],
)
def test_what_is_no_handle_gives_none(text: str) -> None:
    assert decode_recall_handle(text) is None


def test_a_handle_with_bytes_that_are_no_text_is_read_with_marks_in_their_place() -> None:
    handle = decode_recall_handle(base64.urlsafe_b64encode(b"v1 t\xff b 1 k").decode())
    assert handle == RecallHandle("t\ufffd", "b", "1", "k")
