"""Payloads to bytes and back."""

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as pydantic_dataclass

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


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    order_id: int


class Renamed(BaseModel):
    order_id: int = Field(validation_alias="order", serialization_alias="id")
    within: list[Camel]


@dataclass
class Picture:
    pixels: bytes
    parts: "list[Picture]"


@pydantic_dataclass
class Checked:
    pixels: bytes


@pydantic_dataclass(config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"))
class Scanned:
    pixels: bytes


@dataclass
class Album:
    cover: Checked
    scans: dict[str, list[Scanned]]
    own: bytes
    title: Camel | None = None


class Struck(Struct):
    number: int


@dataclass
class Holder:
    struck: Struck


@pytest.mark.parametrize(
    ("payload", "wanted", "content_type"),
    [
        (Order(id=7, customer="ü"), Order, JSON),
        (Point(1, 2.5), Point, JSON),
        (Camel(orderId=7), Camel, JSON),
        (Renamed(order=7, within=[Camel(orderId=8)]), Renamed, JSON),
        (Renamed(order=7, within=[]), Renamed | Point, JSON),
        (Picture(b"\x00\xff", [Picture(b"ab", [])]), Picture, JSON),
        (Picture(b"\x00\xff", []), Picture | Point, JSON),
        (Checked(b"ab"), Checked, JSON),
        (Album(Checked(b"ab"), {"a": [Scanned(b"\x00\xff")]}, b"\xff\xfe"), Album, JSON),
        (Album(Checked(b"ab"), {}, b"", Camel(orderId=7)), Album, JSON),
        ([Checked(b"\x00\xff")], list[Checked], JSON),
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


def test_a_body_may_name_fields_by_their_aliases_as_foreign_clients_do() -> None:
    assert decoder_of(Camel, "h")(b'{"orderId": 7}', "") == Camel(orderId=7)


def test_a_dataclass_that_holds_what_only_msgspec_knows_is_written() -> None:
    assert encode_payload(Holder(Struck(7))) == (b'{"struck":{"number":7}}', JSON)


def test_bytes_that_pydantic_would_not_write_are_refused_inside_of_a_dataclass_too() -> None:
    for payload in (Checked(b"\xff"), Album(Checked(b"\xff"), {}, b"")):
        with pytest.raises(MessageRefused, match="invalid utf-8"):
            encode_payload(payload)


WITHOUT_END: dict[str, Any] = {}
WITHOUT_END["a"] = WITHOUT_END


@pytest.mark.parametrize(
    "payload", [object(), {"a": object()}, 7, None, b"", "", "\ud800", WITHOUT_END]
)
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
