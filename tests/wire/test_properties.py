"""Properties: `name 0x01 value 0x02`, repeated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.errors import MessageRefused
from reliable_mq.limits import PROPERTIES_SIZE_MAX
from reliable_mq.wire.properties import decode_properties, encode_properties

PART = st.text(st.characters(codec="utf-8", exclude_characters="\1\2"), min_size=1)


@given(st.dictionaries(PART, PART, max_size=8))
def test_decode_after_encode_is_the_identity(properties: dict[str, str]) -> None:
    stored = encode_properties(properties)

    assert decode_properties(stored) == decode_properties(stored.decode()) == properties


def test_each_pair_ends_with_its_separator() -> None:
    assert encode_properties({}) == b""
    assert encode_properties({"TAGS": "a", "KEYS": "ö"}) == b"TAGS\1a\2KEYS\1\xc3\xb6\2"


@pytest.mark.parametrize(
    ("stored", "properties"),
    [
        (b"", {}),
        (b"\2\2", {}),
        (b"a\1b", {"a": "b"}),  # writers of version 4 leave out the last separator
        (b"a\1b\2a\1c\2", {"a": "c"}),
        (b"a\1\2b\2\1c\2d\1e\2", {"d": "e"}),  # no value, no separator, no name
        (b"a\1b\1c\2", {"a": "b\1c"}),
        (b"a\1\xff\2", {"a": "\ufffd"}),
    ],
)
def test_what_others_write_is_read_as_apache_reads_it(
    stored: bytes, properties: dict[str, str]
) -> None:
    assert decode_properties(stored) == properties


@pytest.mark.parametrize(
    "properties",
    [{"a\1": "b"}, {"a": "b\2"}, {"a\2b": "c"}, {"a": "\1", "b": "c"}, {"a": "\ud834"}],
)
def test_a_property_that_could_not_be_read_back_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageRefused):
        encode_properties(properties)


def test_properties_are_refused_beyond_what_a_record_holds() -> None:
    room = PROPERTIES_SIZE_MAX - len(b"a\1\2")

    assert len(encode_properties({"a": "x" * room})) == PROPERTIES_SIZE_MAX
    with pytest.raises(MessageRefused, match="32768 bytes"):
        encode_properties({"a": "x" * (room + 1)})


@given(st.binary(max_size=100))
def test_random_bytes_are_read_as_some_properties(stored: bytes) -> None:
    assert all(name and value for name, value in decode_properties(stored).items())
