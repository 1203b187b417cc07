"""fastjson's almost-JSON; what it takes and writes was tried on fastjson 1.2.83."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import I64, TEXT, damaged

from reliable_mq.wire.fastjson import dumps, loads

QUEUE = (("brokerName", "b"), ("queueId", 0), ("topic", "T"))

PLAIN = st.none() | st.booleans() | I64 | TEXT
OBJECT_KEY = st.dictionaries(TEXT, I64 | TEXT, max_size=3).map(
    lambda fields: tuple(sorted(fields.items()))
)
VALUE = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT | I64 | OBJECT_KEY, inner, max_size=3)
    ),
    max_leaves=10,
)


@given(VALUE, st.booleans())
def test_loads_after_dumps_is_the_identity(value: object, indent: bool) -> None:
    assert loads(dumps(value, indent=indent)) == value


def test_maps_are_written_as_apaches_tools_expect_them() -> None:
    assert dumps({1: "y", 0: "x", "s": True}) == b'{0:"x",1:"y","s":true}'
    assert dumps({"offsetTable": {QUEUE: 7}}) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7}}'
    )
    assert dumps({True: 1, None: 2}) == b"{true:1,null:2}"
    assert dumps({"x": [{}, [], 1]}, indent=True) == b'{\n\t"x":[\n\t\t{},\n\t\t[],\n\t\t1\n\t]\n}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("{}", {}),
        (" [ ] ", []),
        ('{0:"x",-1:"y"}', {0: "x", -1: "y"}),
        ('{{"topic":"T","queueId":0,"brokerName":"b"}:7}', {QUEUE: 7}),
        ("{{}:{{}:1}}", {(): {(): 1}}),
        ("{'a':'b\\'c\"d'}", {"a": "b'c\"d"}),
        ("{a:1,b_$2:true}", {"a": 1, "b_$2": True}),
        ("{,,a:1,,b:2,}", {"a": 1, "b": 2}),
        ("[1,,2,]", [1, 2]),
        ("[1 2]", [1, 2]),
        ("{a:01,b:+5,c:-1.5e3}", {"a": 1, "b": 5, "c": -1500.0}),
        ("{a:undefined,b:NaN}", {"a": None, "b": None}),
        ("{a:'\\x41\\u0042\\v\\0\\ud834\\udd1e'}", {"a": "AB\v\0𝄞"}),
        ('{a:"x\ny"}', {"a": "x\ny"}),
        ("{a:1,a:2}", {"a": 2}),
        ('{a:{"$ref":"$.b"}}', {"a": {"$ref": "$.b"}}),
        ("{a:1_0,b:nan}", {"a": "1_0", "b": "nan"}),  # Python's numbers are not Java's
    ],
)
def test_what_fastjson_takes_is_read(text: str, value: object) -> None:
    assert loads(text) == loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[",
        "{a}",
        "{a:}",
        "{a:1}x",
        "{a:1 b:2}",
        "{a:'",
        "{a:'\\q'}",
        "{a:'\\ud834'}",
        "{[1]:2}",
        "{{a:[1]}:2}",
        "{{1:{b:2},c:3}:2}",
        "]",
        "{a:" + "1" * 5000 + "}",
        "[" * 100_000,
        "[" * 100_000 + "a",
        "{a:" * 100_000,
        "{" * 100_000,
        b"\xff",
        b"{a:'\xff'}",
    ],
)
def test_what_spells_no_value_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the kind is the promise
        loads(text)


@given(st.binary(max_size=60) | damaged(VALUE.map(dumps)))
def test_damaged_bytes_give_a_value_or_a_value_error(text: bytes) -> None:
    with contextlib.suppress(ValueError):
        loads(text)


@given(st.text("{}[]:,'\"\\ua01 -.e", max_size=40))
def test_heaps_of_signs_give_a_value_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        loads(text)
