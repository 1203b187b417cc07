"""Payloads to bytes and back."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from reliable_mq.app.payload import decoder_of
from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.outbox.payload import BYTES, JSON, TEXT, encode_payload
from reliable_mq.outbox.schema import PayloadInvalid


class Order(BaseModel):
    id: int
    customer: str


@dataclass
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("payload", "wanted", "content_type"),
    [
        (Order(id=7, customer="ü"), Order, JSON),
        (Point(1, 2.5), Point, JSON),
        ({"a": [1, None]}, dict, JSON),
        ({"a": 1}, dict[str, int], JSON),
        ([1, "b"], Any, JSON),
        ("Grüße", str, TEXT),
        (b"\x00\xff", bytes, BYTES),
    ],
)
def test_a_payload_comes_out_as_it_went_in(payload: object, wanted: Any, content_type: str) -> None:
    body, found = encode_payload(payload)

    assert found == content_type
    assert decoder_of(wanted, "h")(body, "") == payload


@pytest.mark.parametrize("payload", [object(), {"a": object()}, 7, None, b"", "", "\ud800"])
def test_what_cannot_be_carried_is_refused_before_anything_is_written(payload: object) -> None:
    with pytest.raises(MessageRefused):
        encode_payload(payload)


def test_a_payload_over_four_mebibytes_is_refused() -> None:
    with pytest.raises(MessageRefused, match="4194304"):
        encode_payload(b"x" * (4 * 1024 * 1024 + 1))


@pytest.mark.parametrize(
    ("wanted", "body", "reason"),
    [
        (Order, b'{"id": "seven", "customer": "c"}', "id: Input should be a valid integer"),
        (Order, b"not json", "Invalid JSON"),
        (Point, b'{"x": 1}', "y: Field required"),
        (dict[str, int], b'{"a": "b"}', "Expected `int`, got `str`"),
        (str, b"\xff", "not UTF-8"),
    ],
)
def test_a_body_that_does_not_validate_says_why(wanted: Any, body: bytes, reason: str) -> None:
    with pytest.raises(PayloadInvalid, match=reason):
        decoder_of(wanted, "h")(body, "")


def test_a_type_that_no_body_can_become_is_told_when_the_handler_is_registered() -> None:
    with pytest.raises(UsageError, match="handler h"):
        decoder_of(lambda: None, "h")
