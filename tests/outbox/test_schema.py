"""Content types and versions of schemas: what is written is what is read, also years later."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, field_validator
from tests.outbox.benches import Bench

from reliable_mq.consume.payload import decoder_of
from reliable_mq.errors import UsageError
from reliable_mq.outbox.media_type import MediaType, media_type_of
from reliable_mq.outbox.payload import encode_payload
from reliable_mq.outbox.schema import PayloadInvalid, Schema, SchemaTooNew, schema, schema_of


def rename(old: dict[str, Any]) -> dict[str, Any]:
    return {"order_id": old["id"], "amount": old["amount"]}


def to_cents(old: dict[str, Any]) -> dict[str, Any]:
    return {"order_id": old["order_id"], "cents": round(old["amount"] * 100)}


@schema("order.placed", version=3, upgrades={1: rename, 2: to_cents})
class Placed(BaseModel):
    order_id: int
    cents: int


@schema("order.paid")
@dataclass
class Paid:
    order_id: int


@schema("order.counted", version=2)
class Counted(msgspec.Struct):
    n: int


class Child(Placed):
    """A class of its own, which nobody gave a schema."""


V3 = "application/json; schema=order.placed; version=3"


def test_name_and_version_travel_in_the_content_type_and_lie_in_the_stub(bench: Bench) -> None:
    with bench.transaction() as tx:
        tx.send("orders", Placed(order_id=7, cents=1250))
        tx.send("orders", Paid(order_id=7))
        tx.send("orders", Counted(n=1))
        tx.send("orders", Child(order_id=7, cents=1))

    assert [row.content_type for row in bench.stubs()] == [
        V3,
        "application/json; schema=order.paid; version=1",
        "application/json; schema=order.counted; version=2",
        "application/json",
    ]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"order_id": 7, "cents": 1250}', V3),
        (b'{"order_id": 7, "amount": 12.5}', V3.replace("3", "2")),
        (b'{"id": 7, "amount": 12.5}', V3.replace("3", "1")),
        (b'{"id": 7, "amount": 12.5}', "application/json"),  # from before there was a schema
        (b'{"id": 7, "amount": 12.5}', ""),
    ],
)
def test_an_older_message_is_upgraded_step_by_step(body: bytes, content_type: str) -> None:
    assert decoder_of(Placed, "h")(body, content_type) == Placed(order_id=7, cents=1250)


def test_a_foreign_message_means_the_newest_version_where_the_first_is_no_longer_read() -> None:
    assert decoder_of(Counted, "h")(b'{"n": 4}', "") == Counted(n=4)


def test_a_newer_message_is_not_invalid_but_waits_for_newer_code() -> None:
    with pytest.raises(SchemaTooNew, match=r"version 4 of schema order\.placed: this code knows 3"):
        decoder_of(Placed, "h")(b"{}", V3.replace("=3", "=4"))


@pytest.mark.parametrize(
    ("wanted", "body", "content_type", "says"),
    [
        (Placed, b"{}", "application/json; schema=order.paid", "has schema order.paid, expected"),
        (Counted, b"{}", "application/json; schema=order.counted", "the oldest readable is 2"),
        (Placed, b'{"amount": 1}', V3.replace("=3", "=1"), "version 1 .* KeyError: 'id'"),
        (Placed, b"[", V3.replace("=3", "=1"), "cannot be upgraded"),
        (Placed, b"{}", V3.replace("=3", "=three"), "'three' is not a version"),
        (Placed, b"{}", V3.replace("=3", "=" + "9" * 5_000), "content type"),
        (
            Placed,
            b"{}",
            "application/x-protobuf",
            "use a handler that takes `bytes`",
        ),
        (str, b"\x01", "application/x-protobuf", "cannot be decoded"),
        (dict, b"{}", "nonsense", "type/subtype"),
        (dict, b"{}", "application/json; charset", "its parameters cannot be read"),
        (dict, b"{}", "application/json; charset=klingon", "unknown encoding"),
        (dict, b"{}", "application/json; charset=rot13", "not a text encoding"),
        (str, b"\xff", "text/plain; charset=ascii", "not ASCII text"),
        (
            Placed | Paid,
            b"{}",
            "application/json; schema=x",
            "expected order.placed or",
        ),
    ],
)
def test_what_cannot_be_decoded_is_invalid_and_says_why(
    wanted: Any, body: bytes, content_type: str, says: str
) -> None:
    with pytest.raises(PayloadInvalid, match=says):
        decoder_of(wanted, "h")(body, content_type)


@pytest.mark.parametrize(
    ("wanted", "body", "content_type", "payload"),
    [
        (bytes, b"\x01\x02", "application/x-protobuf", b"\x01\x02"),
        (bytes, b"\x01", "nonsense", b"\x01"),
        (str, "Grüße".encode("latin-1"), 'text/plain; charset="ISO-8859-1"', "Grüße"),
        (dict, '{"a": "ü"}'.encode("utf-16"), "application/json; charset=utf-16", {"a": "ü"}),
        (dict, b"{}", "application/problem+json", {}),
        (dict, b"{}", "application/octet-stream", {}),
        (dict, b"{}", "text/plain; charset=utf-8", {}),
        (str, b"{}", "application/json", "{}"),
        (dict, b"{}", "Application/JSON;;", {}),
    ],
)
def test_a_content_type_says_how_a_body_is_read(
    wanted: Any, body: bytes, content_type: str, payload: object
) -> None:
    assert decoder_of(wanted, "h")(body, content_type) == payload


def test_the_schema_chooses_of_a_union_and_without_one_the_first_that_fits() -> None:
    decode = decoder_of(Placed | Paid, "h")

    assert decode(b'{"order_id": 7}', "application/json; schema=order.paid") == Paid(7)
    old = V3.replace("=3", "=1")
    assert decode(b'{"id": 7, "amount": 1}', old) == Placed(order_id=7, cents=100)
    assert decode(b'{"order_id": 7, "cents": 1}', "") == Placed(order_id=7, cents=1)
    assert decoder_of(Placed | None, "h")(b"null", "") is None


def test_whatever_a_validator_raises_is_an_invalid_payload() -> None:
    class Odd(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def fails(cls, n: int) -> int:
            raise KeyError(n)

    with pytest.raises(PayloadInvalid, match="KeyError: …"):
        decoder_of(Odd, "h")(b'{"n": 7}', "")
    with pytest.raises(PayloadInvalid):
        decoder_of(Any, "h")(b"[" * 100_000, "")


def test_a_caller_says_what_its_bytes_are(bench: Bench) -> None:
    with bench.transaction() as tx:
        tx.send("orders", b"\x08\x01", content_type="application/x-protobuf")
        tx.send("orders", '{"id": 1}', content_type="application/json")
        tx.send("orders", "ü", content_type="text/plain; charset=UTF8")
        for payload, content_type, says in (
            ({"id": 1}, "application/json", "only bytes and str need one"),
            ("ü", "text/plain; charset=latin-1", "a str is sent as UTF-8"),
            (b"x", "no type", "type/subtype"),
            (b"x", "text/plain\n", "type/subtype"),
            (b"x", "a/b; c=" + "d" * 130, "127 characters at most"),
        ):
            with pytest.raises(UsageError, match=says):
                tx.send("orders", payload, content_type=content_type)

    assert [row.content_type for row in bench.stubs()] == [
        "application/x-protobuf",
        "application/json",
        "text/plain; charset=UTF8",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "no name"}, "schema 'no name': use 1..64"),
        ({"name": "a", "version": 0}, "version=0 is not 1"),
        ({"name": "a", "version": -1}, "version=-1 is not 1"),
        ({"name": "a", "version": 3, "upgrades": {1: rename}}, "start at .1."),
        ({"name": "a", "version": 2, "upgrades": {0: rename, 1: rename}}, "start at .0, 1."),
        ({"name": "a", "version": 2, "upgrades": {2: rename}}, "start at .2."),
    ],
)
def test_a_schema_with_a_gap_is_refused_where_it_is_declared(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        schema(**options)


def test_a_content_type_reads_as_the_standard_writes_it() -> None:
    media = media_type_of('text/Plain ; Charset="utf\\-8" ;b=c')

    assert (media.kind, media.charset, media.parameters["b"]) == ("text/plain", "utf-8", "c")
    assert encode_payload(Placed(order_id=1, cents=2))[1] == V3


def versioned(version: int, oldest: int = 1) -> Schema:
    return Schema("order.placed", version, dict.fromkeys(range(oldest, version), rename))


def media(version: str) -> MediaType:
    return media_type_of(f'application/json; schema=order.placed; version="{version}"')


@pytest.mark.parametrize("said", ["", "x", "²", "-1", "+1", "1.0", " 1", "00001", "99999"])
def test_what_is_no_version_is_invalid(said: str) -> None:
    with pytest.raises(PayloadInvalid, match=r"is not a version of schema order.placed"):
        versioned(3).version_of(media(said))


def test_versions_are_read_from_the_oldest_to_the_newest() -> None:
    known = versioned(5, oldest=3)
    assert [known.version_of(media(said)) for said in ("3", "4", "5", "0004")] == [3, 4, 5, 4]
    with pytest.raises(PayloadInvalid, match=r"version 2 .* the oldest readable is 3"):
        known.version_of(media("2"))
    with pytest.raises(SchemaTooNew, match="this code knows 5"):
        known.version_of(media("6"))
    assert known.version_of(None) == 5
    assert versioned(5).version_of(media_type_of("application/json")) == 1
    with pytest.raises(PayloadInvalid, match=r"has schema other, expected order.placed"):
        known.version_of(media_type_of("application/json; schema=other; version=3"))
    assert versioned(2).version_of(media_type_of("application/json; schema=order.placed")) == 1


def test_a_schema_has_a_version_up_to_9999_and_a_name_of_64_characters() -> None:
    assert Schema("n" * 64, 9_999, {}).oldest == 9_999
    with pytest.raises(UsageError, match=r"version=10000 is not 1..9999"):
        Schema("n", 10_000, {})
    with pytest.raises(UsageError, match=r"use 1..64 characters"):
        Schema("n" * 65, 1, {})


def test_an_upgrade_that_fails_names_its_version() -> None:
    def fails(_old: Any) -> Any:
        raise ZeroDivisionError("no digit")

    broken = Schema("order.placed", 4, {1: dict, 2: fails, 3: dict})
    with pytest.raises(PayloadInvalid, match=r"version 2 .* cannot be upgraded: .*no digit"):
        broken.upgraded(b'{"n": 1}', 1)
    with pytest.raises(PayloadInvalid, match=r"version 1 .* cannot be upgraded"):
        broken.upgraded(b"{", 1)
    assert broken.upgraded(b"{", 4) == b"{", "the newest version is left as it is"


def test_a_schema_is_of_a_class_and_not_of_its_subclasses_or_objects() -> None:
    class Own:
        pass

    class Below(Own):
        pass

    schema("own")(Own)
    found = schema_of(Own)
    assert found is not None
    assert (found.name, found.version, found.content_type) == (
        "own",
        1,
        "application/json; schema=own; version=1",
    )
    assert (schema_of(Below), schema_of(Own())) == (None, None)
