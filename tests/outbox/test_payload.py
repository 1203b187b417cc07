"""Payloads to bytes and back."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from math import inf, isfinite, nan
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from reliable_mq.consume.payload import decoder_of
from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.outbox.payload import BYTES, JSON, TEXT, encode_payload
from reliable_mq.outbox.schema import PayloadInvalid


class Counted(BaseModel):
    count: int

    @field_validator("count")
    @classmethod
    def _is_positive(cls, value: int) -> int:
        if value <= 0:
            raise ValueError("the count must be positive")
        return value


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


@dataclass
class Line:
    sku: str


@dataclass
class Gift(Line):
    note: str
    seal: bytes = b"\xff"


@pydantic_dataclass
class Pay:
    amount: int


@pydantic_dataclass
class Card(Pay):
    last4: str


class Buyer(BaseModel):
    name: str


class Firm(Buyer):
    vat: str


@dataclass
class Basket:
    lines: list[Line]
    pay: Pay
    buyers: dict[str, Buyer]


class Struck(Struct):
    number: int


@dataclass
class Holder:
    struck: Struck
    buyer: Buyer | None = None


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
    body = b'{"struck":{"number":7},"buyer":{"name":"u"}}'
    assert encode_payload(Holder(Struck(7), Buyer(name="u"))) == (body, JSON)


def test_a_value_of_a_subclass_keeps_its_own_fields_inside_of_a_dataclass() -> None:
    basket = Basket([Gift("a", "hi"), Line("b")], Card(5, "4242"), {"x": Firm(name="F", vat="1")})

    body, _ = encode_payload(basket)

    assert msgspec.json.decode(body) == {
        "lines": [{"sku": "a", "note": "hi", "seal": "/w=="}, {"sku": "b"}],
        "pay": {"amount": 5, "last4": "4242"},
        "buyers": {"x": {"name": "F", "vat": "1"}},
    }
    found = decoder_of(Basket, "h")(body, "")
    assert found == Basket([Line("a"), Line("b")], Pay(5), {"x": Buyer(name="F")})


@dataclass
class Times:
    wait: timedelta
    seal: bytes
    kinds: set[int]
    key: UUID
    at: datetime
    made: int = field(init=False)


@dataclass
class TimesAndPay(Times):
    pay: Pay = field(default_factory=lambda: Pay(1))


def test_a_dataclass_is_written_alike_whether_it_holds_pydantics_or_not() -> None:
    values = (
        timedelta(seconds=90.5),
        b"\xff\xfe",
        {1},
        UUID(int=5),
        datetime(2026, 1, 1, tzinfo=UTC),
    )

    body, _ = encode_payload(Times(*values))
    body_with_pay, _ = encode_payload(TimesAndPay(*values))

    assert body_with_pay == body[:-1] + b',"pay":{"amount":1}}'


@pytest.mark.filterwarnings("error")
def test_what_is_no_value_of_its_annotation_is_written_as_what_it_is() -> None:
    wrong: Any = {"name": "F", "vat": "1"}

    body, _ = encode_payload(Basket([], Pay(5), {"x": wrong}))

    assert body == b'{"lines":[],"pay":{"amount":5},"buyers":{"x":{"name":"F","vat":"1"}}}'


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


class Measured(BaseModel):
    value: float
    note: str | None = None


class MeasuredWithTexts(Measured, ser_json_inf_nan="strings"):
    pass


class Rounded(Measured):
    @field_serializer("value")
    def _written(self, value: float) -> float | None:
        return value if isfinite(value) else None


class StruckFloat(msgspec.Struct):
    value: float
    note: str | None = None


@dataclass
class Plain:
    parts: list[Measured | StruckFloat | None]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"a": nan}, "a is nan"),
        ({"a": [1.0, {"b": -inf}]}, r"a\[1\]\.b is -inf"),
        ([inf], r"\[0\] is inf"),
        (Measured(value=nan), "value is nan"),
        (StruckFloat(inf), "value is inf"),
        (Plain([StruckFloat(1.0), Measured(value=nan)]), r"parts\[1\]\.value is nan"),
    ],
)
def test_a_float_that_json_has_not_is_refused_with_its_place(payload: object, says: str) -> None:
    with pytest.raises(MessageRefused, match=says):
        encode_payload(payload)


@pytest.mark.parametrize(
    "payload",
    [
        {"a": None, "b": 1.5, "c": "null", "d": "nan", "e": 1e308},
        Measured(value=1.0),
        MeasuredWithTexts(value=nan),
        Rounded(value=nan),
        StruckFloat(1.0),
        Plain([None, MeasuredWithTexts(value=inf)]),
        "null nan",
        b"null",
    ],
)
def test_null_that_was_meant_is_written(payload: object) -> None:
    assert b"null" in encode_payload(payload)[0]


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
        (Counted, b'{"count": 0}', "^count: the count must be positive$"),
    ],
)
def test_a_body_that_does_not_validate_says_why(wanted: Any, body: bytes, reason: str) -> None:
    with pytest.raises(PayloadInvalid, match=reason):
        decoder_of(wanted, "h")(body, "")


def test_a_type_that_no_body_can_become_is_told_when_the_handler_is_registered() -> None:
    with pytest.raises(UsageError, match="handler h"):
        decoder_of(lambda: None, "handler h")


class Prices(BaseModel):
    of: dict[int | str, str]


class Level(Enum):
    ONE = "1"


@dataclass
class Placed:
    prices: dict[Any, str]


@pytest.mark.parametrize(
    "payload",
    [
        {1: "a", "1": "b"},
        {"items": [{"prices": {1: "a", "1": "b"}}]},
        {"x": {Level.ONE: "a", "1": "b"}},
        [{1: "a", "1": "b"}, 10**400],
        Placed({1: "a", "1": "b"}),
        Prices(of={1: "a", "1": "b"}),
    ],
)
def test_two_keys_that_become_one_text_are_refused(payload: Any) -> None:
    """A consumer got one of the two values, and the other one was lost."""
    with pytest.raises(MessageRefused, match="two keys of a dict become '1', and a reader would"):
        encode_payload(payload)


def test_keys_that_are_numbers_are_written_as_texts() -> None:
    payload = {1: "a", 2: "b", "3": {1: "c"}, "-4": 10**400}

    body, _ = encode_payload(payload)

    assert body == b'{"1":"a","2":"b","3":{"1":"c"},"-4":%d}' % 10**400
    assert encode_payload('{"1": 1, "1": 2}') == (b'{"1": 1, "1": 2}', TEXT)


class CardPaid(BaseModel):
    type: Literal["card"] = "card"
    digits: str


class CashPaid(BaseModel):
    type: Literal["cash"] = "cash"
    coins: int


class Typed(TypedDict):
    type: str
    data: bytes


def test_a_field_called_type_chooses_the_member_of_a_union() -> None:
    """The field stands where pydantic's schema has its own `type`."""
    for wanted in (
        Annotated[CardPaid | CashPaid, Field(discriminator="type")],
        CardPaid | CashPaid,
    ):
        decode = decoder_of(wanted, "handler pay")
        for payload in (CardPaid(digits="4711"), CashPaid(coins=3)):
            assert decode(*encode_payload(payload)) == payload
    typed: Typed = {"type": "blob", "data": b"\xff"}
    assert decoder_of(Typed, "handler keep")(*encode_payload(typed)) == typed
