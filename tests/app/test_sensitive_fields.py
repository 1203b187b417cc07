"""Sensitive fields: what is masked, what is not shown at all, and what is put back."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, Field, SecretStr

from reliable_mq import ReliableMQ
from reliable_mq.errors import ConfigurationError
from reliable_mq.sensitive import (
    BODY_SIZE_MAX,
    MASK,
    NOT_SHOWN,
    MaskMisplaced,
    SensitiveFields,
    checked_names,
)

SECRET = "4111-1111"


def fields(*names: str) -> SensitiveFields:
    return SensitiveFields(frozenset(checked_names(names, "test")))


CARD = fields("card_number", "customer.email")


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ('{"card_number": "4111-1111", "n": 1.00}', '{"card_number": "[masked]", "n": 1.00}'),
        ('{"cardNumber":"4111-1111"}', '{"cardNumber":"[masked]"}'),
        ('{"CARD-NUMBER":"4111-1111"}', '{"CARD-NUMBER":"[masked]"}'),
        (r'{"card\u005fnumber":"4111-1111"}', r'{"card\u005fnumber":"[masked]"}'),
        ('{"a":[{"card_number":[1,{"b":"4111-1111"}]},2]}', '{"a":[{"card_number":"[masked]"},2]}'),
        ('{"card_number":"4111-1111","card_number":2}', None),
        ('{"customer":{"email":"4111-1111","x":1}}', '{"customer":{"email":"[masked]","x":1}}'),
        ('{"customer":[{"email":"4111-1111"}]}', '{"customer":[{"email":"[masked]"}]}'),
        ('{"customer.email":"4111-1111"}', '{"customer.email":"[masked]"}'),
        ('{"email":"shown"}', '{"email":"shown"}'),
        (r'{"p":"{\"card_number\":\"4111-1111\"}"}', '{"p":"[masked]"}'),
        (r'{"p":"{\"card_number\":\"4111-1111"}', '{"p":"[masked]"}'),
        (r'{"p":"\"{\\\"card_number\\\":\\\"4111-1111\\\"}\""}', '{"p":"[masked]"}'),
        (r'{"p":"request: {\"card_number\": \"4111-1111\"}"}', '{"p":"[masked]"}'),
        (r'{"p":"request: {\"card\\u005fnumber\": \"4111-1111\"}"}', '{"p":"[masked]"}'),
        (r'{"p":"\ufeff{\"card_number\":\"4111-1111\"}"}', '{"p":"[masked]"}'),
        ('{"p":"order=1&card%5Fnumber=4111-1111"}', '{"p":"[masked]"}'),
        ('{"p":"<card-number>4111-1111</card-number>"}', '{"p":"[masked]"}'),
        ('{"p":"a: b","q":"the card_number is missing"}', None),
        (r'{"p":"\"{\\\"a\\\":1}\""}', r'{"p":"\"{\\\"a\\\":1}\""}'),
        (r'{"p":"[urgent] call","q":"{\"a\":1}"}', r'{"p":"[urgent] call","q":"{\"a\":1}"}'),
        ('{"data":{"card_number":"4111-1111"}}', '{"data":{"card_number":"[masked]"}}'),
        ('{"data_base64":"NDExMS0xMTEx"}', '{"data_base64":"[masked]"}'),
        ('"4111-1111"', '"[masked]"'),
        ('["4111-1111",{"a":1}]', '["[masked]",{"a":1}]'),
    ],
)
def test_a_sensitive_value_is_masked_wherever_it_is(body: str, shown: str | None) -> None:
    found = CARD.masked(body.encode())
    assert found is not None
    assert SECRET not in found
    json.loads(found)
    if shown is not None:
        assert found == shown
    assert CARD.restored(found, body.encode()) == body


@pytest.mark.parametrize(
    "body",
    [
        *(b"4111-1111", b"<card>4111-1111</card>", b'{"card_number":"4111-1111"', b"\xff4111-1111"),
        '{"a":"4111-1111"}'.encode("utf-16"),
        b"[" * 100_000 + b'"4111-1111"',
        b'{"a":"' + b"x" * BODY_SIZE_MAX + b'"}',
    ],
    ids=["number and more", "XML", "cut", "binary", "UTF-16", "deep", "long"],
)
def test_what_cannot_be_looked_into_is_not_shown(body: bytes) -> None:
    assert CARD.masked(body) is None
    assert CARD.shown(body) == NOT_SHOWN
    assert fields().shown(body) != NOT_SHOWN
    with pytest.raises(MaskMisplaced):
        CARD.restored('{"card_number":"[masked]"}', body)


def test_a_star_hides_each_payload() -> None:
    assert fields("*").shown(b"{}") == NOT_SHOWN


def test_a_person_changes_what_is_shown_and_the_rest_is_put_back() -> None:
    body = b'{"total": "ten", "card_number": "4111-1111", "customer": {"email": "a@b"}}'
    seen = CARD.shown(body)
    edited = seen.replace('"ten"', "10.00").replace(
        f'"email": "{MASK}"', '"email": "c@d", "more": 1'
    )
    assert CARD.restored(edited, body) == (
        '{"total": 10.00, "card_number": "4111-1111", "customer": {"email": "c@d", "more": 1}}'
    )


@pytest.mark.parametrize(
    "edited",
    [
        '{"note":"[masked]"}',
        '{"customer":{"email":"[masked]"}}',
        '{"a":{"card_number":"[masked]"}}',
        '{"card_number":"[masked]","card_number":"[masked]"}',
        '{"card_number":[masked]}',
        "card_number=[masked]",
    ],
)
def test_a_mask_at_another_place_is_refused(edited: str) -> None:
    with pytest.raises(MaskMisplaced):
        CARD.restored(edited, b'{"card_number":"4111-1111"}')


def test_headers_with_the_name_of_a_field_are_masked() -> None:
    shown = CARD.masked_headers({"Card-Number": SECRET, "email": "shown"})
    assert shown == {"Card-Number": MASK, "email": "shown"}
    assert CARD.masked_headers({"__CRC32#": "12"}) == {"__CRC32#": MASK}
    assert CARD.masked_headers({"raw": f"cardNumber={SECRET}"}) == {"raw": MASK}
    assert CARD.masked_json('{"card_number":"4111-1111"}') == '{"card_number": "[masked]"}'
    assert CARD.masked_json("4111-1111") == CARD.masked_json("[1") == MASK
    assert fields().masked_json("x") == "x"
    assert fields().masked_headers({"list": "[1]"}) == {"list": "[1]"}


def test_topics_and_settings_name_sensitive_fields() -> None:
    mq = ReliableMQ("shop", sensitive=["pin"])
    mq.topic("orders", sensitive=["card_number"])
    mq.topic("orders", groups=["billing"], sensitive=["iban"])
    mq.topic("news")

    known = mq._declared.sensitive_of
    assert known("orders").names == known("live%orders").names == {"pin", "cardnumber", "iban"}
    assert known("news").names == known("nothing").names == {"pin"}
    for topic in ("%DLQ%billing", "%RETRY%live%billing"):  # a message of each topic
        assert known(topic).names == {"pin", "cardnumber", "iban"}


class Card(BaseModel):
    number: SecretStr = Field(alias="pan")
    holder: str


class Paid(BaseModel):
    cards: list[Card]
    pins: list[SecretStr] | None = None
    mail: str = Field(json_schema_extra={"format": "password"})


class Struct(msgspec.Struct, rename="camel"):
    bank_account: Annotated[str, msgspec.Meta(extra_json_schema={"writeOnly": True})]
    name: str


@dataclass
class Plain:
    word: SecretStr
    other: Any = None


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Paid, {"number", "pan", "pins", "mail"}),
        (Struct, {"bankaccount"}),
        (Plain, {"word"}),
        (dict[str, int], set()),
        (bytes, set()),
    ],
)
def test_the_type_of_a_payload_marks_its_sensitive_fields(kind: Any, names: set[str]) -> None:
    sends, reads = ReliableMQ("shop"), ReliableMQ("shop")
    sends.topic("orders", payload=kind)

    def handle(payload: Any) -> None: ...

    handle.__annotations__["payload"] = kind
    reads.consumer("orders", group="billing")(handle)
    assert sends._declared.sensitive_of("orders").names == names
    assert reads._declared.sensitive_of("orders").names == names


@pytest.mark.parametrize("wrong", ["pin", [""], ["a..b"], [7], [" "], ["x" * 201], ["x"] * 201])
def test_a_name_of_no_field_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="sensitive"):
        ReliableMQ("shop").topic("orders", sensitive=wrong)
    with pytest.raises(ConfigurationError, match="sensitive"):
        ReliableMQ("shop", sensitive=wrong)
