"""Typed headers: ext fields are text, and only values that Java could hold get past."""

from typing import Optional

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import I32, I64, TEXT

from reliable_mq.wire import headers, java_int
from reliable_mq.wire.headers import (
    Header,
    HeaderInvalid,
    PullMessageHeader,
    SendMessageHeader,
    SendMessageHeaderV2,
)

PLAIN: dict[object, st.SearchStrategy[object]] = {
    str: TEXT,
    bool: st.booleans(),
    java_int.I32: I32,
    java_int.I64: I64,
}
OPTIONAL = {Optional[kind]: st.none() | values for kind, values in PLAIN.items()}  # noqa: UP045
VALUES = PLAIN | OPTIONAL
KINDS = [
    kind
    for kind in vars(headers).values()
    if isinstance(kind, type) and issubclass(kind, Header) and kind is not Header
]
SEND = {
    "a": "shop",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "k\1v\2",
    "k": "false",
    "m": "true",
    "n": "broker-a",
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_decode_after_to_ext_is_the_identity(kind: type[Header], data: st.DataObject) -> None:
    fields = {field.name: VALUES[field.type] for field in msgspec.structs.fields(kind)}
    header = kind(**data.draw(st.fixed_dictionaries(fields)))

    ext = header.to_ext()

    assert kind.decode(ext) == header
    assert all(isinstance(value, str) for value in ext.values())


def test_a_send_travels_under_one_letter_a_field() -> None:
    header = SendMessageHeaderV2.decode(SEND)

    assert isinstance(header, SendMessageHeader)
    assert (header.producer_group, header.topic, header.queue_id) == ("shop", "orders", 3)
    assert (header.batch, header.unit_mode, header.reconsume_times) == (True, False, None)
    assert header.to_ext() == {name: SEND[name] for name in SEND if name != "n"}


def test_the_two_forms_of_a_send_have_the_same_fields() -> None:
    long, short = SendMessageHeader.__struct_fields__, SendMessageHeaderV2.__struct_fields__

    assert sorted(long) == sorted(short)
    assert "".join(sorted(SendMessageHeaderV2.__struct_encode_fields__)) == "abcdefghijklm"


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "f", "g", "h"])
def test_a_required_field_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(HeaderInvalid, match=f"`{name}`"):
        SendMessageHeaderV2.decode({key: SEND[key] for key in SEND if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("e", "x"), ("e", ""), ("e", str(2**31)), ("f", str(-(2**31) - 1)), ("h", "9" * 400)),
        *(("g", str(2**63)), ("k", "maybe"), ("j", "2147483648")),
    ],
)
def test_a_value_that_java_could_not_read_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(HeaderInvalid, match=rf"\$\.{name}"):
        SendMessageHeaderV2.decode({**SEND, name: value})


def test_the_text_null_stays_text() -> None:
    assert SendMessageHeaderV2.decode({**SEND, "i": "null"}).properties == "null"


@given(st.dictionaries(st.sampled_from([*"abcdefghijklmn"]) | TEXT, TEXT))
def test_random_ext_fields_give_a_header_or_header_invalid(ext: dict[str, str]) -> None:
    for kind, fields in ((SendMessageHeaderV2, {**SEND, **ext}), (PullMessageHeader, ext)):
        try:
            header = kind.decode(fields)
        except HeaderInvalid:
            continue
        assert msgspec.structs.asdict(header)
