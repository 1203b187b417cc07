"""Headers of requests: what is malformed ends its stream, and only that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.test_http2 import begun, call, frames

from reliable_mq.gateway.header_rules import is_grpc, why_malformed, why_no_trailers
from reliable_mq.gateway.hpack import block_of
from reliable_mq.gateway.http2 import Http2Connection
from reliable_mq.gateway.http2_frames import BEGUN, ENDED, RESET, Http2Error, Http2Fault, frame_of

METHOD, SCHEME, PATH = (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b")
TYPE, TE = (b"content-type", b"application/grpc"), (b"te", b"trailers")
PSEUDO = [METHOD, SCHEME, PATH]
RESET_STREAM = 3

MALFORMED = [
    ("':method' is missing", [SCHEME, PATH, TYPE]),
    ("':scheme' is missing", [METHOD, PATH, TYPE]),
    ("':path' is missing", [METHOD, SCHEME, TYPE]),
    (":path is empty", [METHOD, SCHEME, (b":path", b""), TYPE]),
    ("':method' comes twice", [METHOD, *PSEUDO, TYPE]),
    ("':path' comes twice", [*PSEUDO, PATH, TYPE]),
    ("':authority' comes twice", [*PSEUDO, (b":authority", b"a"), (b":authority", b"b")]),
    ("':path' comes behind other headers", [METHOD, SCHEME, TYPE, PATH]),
    ("':status' is no header of a request", [*PSEUDO, (b":status", b"200")]),
    ("':protocol' is no header of a request", [*PSEUDO, (b":protocol", b"websocket")]),
    ("'Content-Type' is no name", [*PSEUDO, (b"Content-Type", b"application/grpc")]),
    ("'' is no name", [*PSEUDO, (b"", b"x")]),
    ("'a b' is no name", [*PSEUDO, (b"a b", b"x")]),
    ("'a:b' is no name", [*PSEUDO, (b"a:b", b"x")]),
    ("'caf\\xe9' is no name", [*PSEUDO, (b"caf\xe9", b"x")]),
    ("'connection' belongs", [*PSEUDO, (b"connection", b"close")]),
    ("'keep-alive' belongs", [*PSEUDO, (b"keep-alive", b"5")]),
    ("'proxy-connection' belongs", [*PSEUDO, (b"proxy-connection", b"close")]),
    ("'transfer-encoding' belongs", [*PSEUDO, (b"transfer-encoding", b"chunked")]),
    ("'upgrade' belongs", [*PSEUDO, (b"upgrade", b"h2c")]),
    ("te is something else", [*PSEUDO, (b"te", b"gzip")]),
    ("te is something else", [*PSEUDO, (b"te", b"trailers, deflate")]),
    ("the value of 'a'", [*PSEUDO, (b"a", b"x\r\ny: z")]),
    ("the value of 'a'", [*PSEUDO, (b"a", b"\0")]),
    ("the value of 'a'", [*PSEUDO, (b"a", b" x")]),
    ("the value of 'a'", [*PSEUDO, (b"a", b"x\t")]),
    ("the value of ':path'", [METHOD, SCHEME, (b":path", b"/a\n")]),
]


@pytest.mark.parametrize(("why", "headers"), MALFORMED)
def test_a_malformed_request_ends_its_stream_only(
    why: str, headers: list[tuple[bytes, bytes]]
) -> None:
    assert why_malformed(headers).startswith(why)
    connection = begun()
    block = block_of(headers)
    assert connection.feed(frame_of(1, 4, 1, block) + frame_of(0, 1, 1, b"body"), 0.0) == []
    reset = (RESET_STREAM, 0, 1, int(Http2Fault.PROTOCOL_ERROR).to_bytes(4))
    assert frames(connection.out) == [reset]
    assert [kind for kind, _ in connection.feed(call(3), 0.0)] == [BEGUN, ENDED]
    connection.invariants()


@pytest.mark.parametrize(
    "headers",
    [
        [*PSEUDO, TYPE, TE],
        [PATH, METHOD, SCHEME, (b":authority", b"h:1"), TYPE],
        [*PSEUDO, TYPE],  # without te: an older proxy in between removed it
        [(b":method", b"GET"), SCHEME, PATH],  # well formed: HTTP has an answer to it
        [*PSEUDO, TYPE, (b"x-mq-client-id", b"a b@1@2"), (b"x-mq-client-id", b"b")],
        [*PSEUDO, TYPE, (b"grpc-timeout", b""), (b"authorization", b"MQv2 x=\xc3\xa9")],
    ],
)
def test_a_well_formed_request_begins(headers: list[tuple[bytes, bytes]]) -> None:
    assert why_malformed(headers) == ""
    happened = begun().feed(frame_of(1, 5, 1, block_of(headers)), 0.0)
    assert [kind for kind, _ in happened] == [BEGUN, ENDED]


@pytest.mark.parametrize(
    "trailer", [PATH, (b":status", b"200"), (b"Upper", b"x"), (b"upgrade", b"x"), (b"a", b"\n")]
)
def test_malformed_trailers_end_their_stream_only(trailer: tuple[bytes, bytes]) -> None:
    assert why_no_trailers([trailer])
    connection = begun()
    connection.feed(frame_of(1, 4, 1, block_of(PSEUDO)), 0.0)
    happened = connection.feed(frame_of(1, 5, 1, block_of([trailer])), 0.0)
    assert [kind for kind, _ in happened] == [RESET]
    assert not connection.streams
    assert [kind for kind, _ in connection.feed(call(3), 0.0)] == [BEGUN, ENDED]


def test_well_formed_trailers_end_the_request() -> None:
    connection = begun()
    connection.feed(frame_of(1, 4, 1, block_of(PSEUDO)), 0.0)
    happened = connection.feed(frame_of(1, 5, 1, block_of([(b"x-sum", b"1")])), 0.0)
    assert [kind for kind, _ in happened] == [ENDED]


def test_malformed_requests_without_end_are_cut_off() -> None:
    connection = begun()
    block = block_of([METHOD])
    with pytest.raises(Http2Error, match="bring nothing"):
        connection.feed(b"".join(frame_of(1, 5, n, block) for n in range(1, 10_001, 2)), 0.0)


def test_requests_with_malformed_trailers_without_end_are_cut_off() -> None:
    connection = begun()
    head, trailers = block_of(PSEUDO), block_of([PATH])
    streams = (frame_of(1, 4, n, head) + frame_of(1, 5, n, trailers) for n in range(1, 10_001, 2))
    with pytest.raises(Http2Error, match="bring nothing"):
        connection.feed(b"".join(streams), 0.0)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"Application/gRPC; charset=utf-8", True),
        (b"application/grpc-web+proto", False),
        (b"application/grpcx", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_the_content_type_is_that_of_grpc(text: bytes, fits: bool) -> None:
    assert is_grpc(text) is fits


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=6))
def test_any_headers_begin_a_stream_or_end_it(headers: list[tuple[bytes, bytes]]) -> None:
    connection: Http2Connection = begun()
    happened = connection.feed(frame_of(1, 5, 1, block_of(headers)), 0.0)
    assert bool(happened) is (why_malformed(headers) == "")
    connection.invariants()
