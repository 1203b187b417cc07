"""Compressed headers: RFC 7541's own examples, and what a hostile peer may send."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.errors import FrameError
from reliable_mq.gateway.hpack import LIST_SIZE_MAX, HeaderReader, block_of, plain_of

FIRST = bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")
SECOND = bytes.fromhex("828684be5886a8eb10649cbf")


def test_the_examples_of_the_rfc_are_read() -> None:
    reader = HeaderReader()
    front = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]
    host = (b":authority", b"www.example.com")
    assert reader.read(FIRST) == [*front, host]
    assert reader.read(SECOND) == [*front, host, (b"cache-control", b"no-cache")]
    reader.invariants()


@given(st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=200)), max_size=20))
def test_what_is_written_is_read(headers: list[tuple[bytes, bytes]]) -> None:
    assert HeaderReader().read(block_of(headers)) == headers


@given(st.binary(max_size=300))
def test_any_bytes_are_headers_or_refused(block: bytes) -> None:
    reader = HeaderReader()
    with contextlib.suppress(FrameError):
        reader.read(block)
    reader.invariants()


@given(st.binary(max_size=100))
def test_any_bytes_are_a_huffman_text_or_refused(text: bytes) -> None:
    try:
        plain = plain_of(text)
    except FrameError:
        return
    assert plain_of(text) == plain


def test_a_short_block_cannot_make_long_headers() -> None:
    """One entry of 4,000 bytes, named again and again by a byte each."""
    reader = HeaderReader()
    reader.read(b"\x40" + b"\x01a" + b"\x7f\xa1\x1e" + b"x" * 4000)
    with pytest.raises(FrameError, match=str(LIST_SIZE_MAX)):
        reader.read(b"\xbe" * 1000)


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # entry 0
        b"\xff\xff\xff\xff\xff\xff",  # a number without an end
        b"\x40\x05ab",  # a text longer than the block
        b"\x82\x3f\xe1\x7f",  # a larger table, behind a header
        b"\x40",  # nothing behind the first byte
    ],
)
def test_a_block_that_cannot_be_read_is_refused(block: bytes) -> None:
    with pytest.raises(FrameError):
        HeaderReader().read(block)


def test_the_table_forgets_the_oldest_entries() -> None:
    reader = HeaderReader()
    for number in range(200):
        name = b"name%03d" % number
        reader.read(b"\x40" + bytes([len(name)]) + name + b"\x32" + b"v" * 50)
    reader.invariants()
    assert reader.read(b"\xbe")[0][0] == b"name199"
