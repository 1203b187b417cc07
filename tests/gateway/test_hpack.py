"""Compressed headers: RFC 7541's own examples, and what a hostile peer may send."""

import contextlib

import pytest
from bench.endpoint_cost import HeaderWriter
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


HEADERS = st.tuples(
    st.sampled_from([b":path", b"te", *(b"name-%d" % number for number in range(40))]),
    st.integers(0, 3).map(b"%d".__mod__) | st.binary(min_size=120, max_size=130),
)


@given(st.lists(st.lists(HEADERS, max_size=12), min_size=1, max_size=12))
def test_what_a_client_keeps_in_the_table_is_read(calls: list[list[tuple[bytes, bytes]]]) -> None:
    """A client on Netty keeps all headers, and names those that it has kept by number."""
    writer, reader = HeaderWriter(), HeaderReader()
    for headers in calls:
        assert reader.read(writer.block(headers)) == headers
        reader.invariants()


def raw(name: bytes, value: bytes, first: bytes = b"\0") -> bytes:
    """Return a header whose name and value are written out; b"@" as `first`: the peer keeps it."""
    return b"".join((first, bytes([len(name)]), name, bytes([len(value)]), value))


def call_of(number: int, day: bytes = b"20261129") -> bytes:
    """Return a block as the SDK for Python writes it."""
    request_id = raw(b"x-mq-request-id", b"%036d" % number)
    return b"\x83\xbe" + raw(b"x-mq-date-time", day) + request_id + raw(b"x-mq-namespace", b"")


def test_what_calls_repeat_is_kept_until_the_table_changes() -> None:
    reader = HeaderReader()
    reader.read(raw(b"te", b"trailers", b"@"))
    first, second = reader.read(call_of(1)), reader.read(call_of(2))
    number = [name for name, _ in first].index(b"x-mq-request-id")
    assert second[number] == (b"x-mq-request-id", b"%036d" % 2)
    del first[number], second[number]
    assert first == second
    assert all(one is other for one, other in zip(first, second, strict=True))
    reader.read(raw(b"te", b"other", b"@"))
    assert (b"te", b"other") in reader.read(call_of(3))
    reader.invariants()


PARTS = st.one_of(
    st.builds(raw, st.sampled_from([b"a", b"b"]), st.binary(max_size=40)),
    st.builds(raw, st.sampled_from([b"a", b"b"]), st.binary(max_size=40), st.just(b"@")),
    st.builds(raw, st.just(b"x-mq-request-id"), st.binary(min_size=36, max_size=36)),
    st.builds(raw, st.just(b"a"), st.builds(call_of, st.integers(0, 9))),
    st.sampled_from([b"\x83", b"\x86", b"\xbe", b"\xbf", b"\x3f\xe1\x1f", b"\x20"]),
    st.builds(call_of, st.integers(0, 9)),
    st.binary(max_size=4),
)


@given(st.lists(st.lists(PARTS, max_size=5).map(b"".join), max_size=8))
def test_blocks_are_read_as_by_a_reader_that_keeps_nothing(blocks: list[bytes]) -> None:
    keeping, other = HeaderReader(), HeaderReader()
    for block in blocks:
        found: list[object] = []
        for reader in (keeping, other):
            try:
                found.append(reader.read(block))
            except FrameError:
                found.append(None)
        assert found[0] == found[1]
        keeping.invariants()
        other._forget_runs()
        if found[0] is None:  # the connection ends
            return


def test_what_is_kept_of_calls_is_bounded() -> None:
    reader = HeaderReader()
    reader.read(raw(b"te", b"trailers", b"@"))
    for number in range(100):
        reader.read(call_of(1, b"%0100d" % number))
        reader.invariants()
