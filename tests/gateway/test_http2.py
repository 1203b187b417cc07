"""One HTTP/2 connection: its rules, and what a hostile peer may do with them."""

import asyncio
import struct
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_mq.gateway.hpack import block_of
from reliable_mq.gateway.http2 import Http2Connection
from reliable_mq.gateway.http2_frames import (
    BEGUN,
    CAME,
    CONNECTION_WINDOW,
    ENDED,
    FRAME_SIZE,
    PREFACE,
    RESET,
    STREAMS_MAX,
    Http2Error,
    Http2Fault,
    Stream,
    frame_of,
)
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.runtime.grpc_connection import GrpcConnection

HEAD = block_of([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a")])
SETTINGS = frame_of(4, 0, 0)


def begun() -> Http2Connection:
    connection = Http2Connection()
    connection.feed(PREFACE + SETTINGS, 0.0)
    connection.out.clear()
    return connection


def call(number: int, body: bytes = b"x") -> bytes:
    return frame_of(1, 4, number, HEAD) + frame_of(0, 1, number, body)


def frames(out: list[bytes]) -> list[tuple[int, int, int, bytes]]:
    """Return type, flags, stream and payload of what was sent."""
    data, found = b"".join(out), []
    while data:
        size = int.from_bytes(data[:3])
        kind, flags, number = struct.unpack_from(">BBI", data, 3)
        found.append((kind, flags, number, data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def test_a_call_begins_and_ends() -> None:
    connection = begun()
    happened = connection.feed(call(1, b"hello"), 0.0)
    assert [kind for kind, _ in happened] == [BEGUN, ENDED]
    stream = happened[0][1]
    assert connection.take_body(stream) == b"hello"
    connection.answer(stream, b"H", b"data", b"T")
    assert [(kind, flags) for kind, flags, _, _ in frames(connection.out)] == [
        (1, 4),
        (0, 0),
        (1, 5),
    ]
    assert not connection.streams
    connection.invariants()


@settings(max_examples=50)
@given(st.lists(st.integers(1, 40), max_size=20))
def test_any_split_of_the_bytes_gives_the_same(sizes: list[int]) -> None:
    data = PREFACE + SETTINGS + call(1, b"a" * 30) + call(3, b"b")
    connection, happened, at = Http2Connection(), [], 0
    for size in [*sizes, len(data)]:
        happened += connection.feed(data[at : at + size], 0.0)
        at += size
    ended = [stream for kind, stream in happened if kind == ENDED]
    assert [bytes(each.body) for each in ended] == [b"a" * 30, b"b"]
    connection.invariants()


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 12), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=40)
        )
    )
)
def test_any_frames_keep_the_invariants(given_frames: list[tuple[int, int, int, bytes]]) -> None:
    connection = begun()
    try:
        for kind, flags, number, payload in given_frames:
            for what, stream in connection.feed(frame_of(kind, flags, number, payload), 0.0):
                if what == ENDED and not stream.is_reset:
                    connection.answer(stream, b"H", b"data", b"T")
            connection.invariants()
    except Http2Error:
        pass


def test_an_answer_waits_for_the_window_of_the_peer() -> None:
    connection = begun()
    ((_, stream), _) = connection.feed(call(1), 0.0)
    connection.take_body(stream)
    data = b"d" * 100_000
    connection.answer(stream, b"H", data, b"T")
    sent = [each for each in frames(connection.out) if each[0] == 0]
    assert sum(len(each[3]) for each in sent) == 65_535
    assert all(len(each[3]) <= FRAME_SIZE for each in sent)
    assert connection.waiting_size == 100_000 - 65_535
    connection.out.clear()
    more = struct.pack(">I", 100_000)
    connection.feed(frame_of(8, 0, 0, more) + frame_of(8, 0, 1, more), 0.0)
    assert frames(connection.out)[-1][:2] == (1, 5)
    assert connection.waiting_size == 0
    connection.invariants()


def test_a_larger_window_in_the_settings_lets_data_go() -> None:
    connection = begun()
    connection.feed(frame_of(4, 0, 0, struct.pack(">HI", 4, 0)), 0.0)
    ((_, stream), _) = connection.feed(call(1), 0.0)
    connection.take_body(stream)
    connection.answer(stream, b"H", b"data", b"T")
    assert connection.waiting_size == 4
    connection.feed(frame_of(4, 0, 0, struct.pack(">HI", 4, 100)), 0.0)
    assert connection.waiting_size == 0


def test_a_reset_drops_what_waits() -> None:
    connection = begun()
    ((_, stream), _) = connection.feed(call(1), 0.0)
    connection.answer(stream, b"H", b"d" * 100_000, b"T")
    assert connection.feed(frame_of(3, 0, 1, b"\0\0\0\x08"), 0.0) == [(RESET, stream)]
    assert connection.waiting_size == 0
    connection.out.clear()
    connection.answer(stream, b"H", b"more", b"T")
    assert not connection.out
    connection.invariants()


def test_trailers_of_the_peer_end_a_body() -> None:
    connection = begun()
    connection.feed(frame_of(1, 4, 1, HEAD) + frame_of(0, 0, 1, b"x"), 0.0)
    assert [kind for kind, _ in connection.feed(frame_of(1, 5, 1, b""), 0.0)] == [ENDED]


def test_the_window_of_the_peer_is_refilled() -> None:
    connection, total = begun(), 0
    connection.feed(frame_of(1, 4, 1, HEAD), 0.0)
    while total < 3 * CONNECTION_WINDOW:
        for kind, stream in connection.feed(frame_of(0, 0, 1, b"x" * FRAME_SIZE), 0.0):
            assert kind == CAME
            connection.take_body(stream)
        total += FRAME_SIZE
    assert any(kind == 8 and number == 1 for kind, _, number, _ in frames(connection.out))
    assert any(kind == 8 and number == 0 for kind, _, number, _ in frames(connection.out))


def test_streams_beyond_the_limit_are_refused_and_the_others_go_on() -> None:
    connection = begun()
    for number in range(STREAMS_MAX + 5):
        connection.feed(frame_of(1, 4, 2 * number + 1, HEAD), 0.0)
    refused = [each for each in frames(connection.out) if each[0] == 3]
    assert len(refused) == 5
    assert len(connection.streams) == STREAMS_MAX


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        (frame_of(0, 0, 1, b"x"), Http2Fault.PROTOCOL_ERROR),
        (frame_of(1, 4, 2, HEAD), Http2Fault.PROTOCOL_ERROR),
        (frame_of(5, 4, 2, b""), Http2Fault.PROTOCOL_ERROR),
        (frame_of(6, 0, 0, b"short"), Http2Fault.FRAME_SIZE_ERROR),
        (frame_of(8, 0, 0, b"\0\0\0\0"), Http2Fault.FLOW_CONTROL_ERROR),
        (frame_of(8, 0, 0, b"\x7f\xff\xff\xff"), Http2Fault.FLOW_CONTROL_ERROR),
        (frame_of(4, 0, 0, b"12345"), Http2Fault.FRAME_SIZE_ERROR),
        (frame_of(1, 4, 1, b"\x80"), Http2Fault.COMPRESSION_ERROR),
        (frame_of(9, 0, 1, HEAD), Http2Fault.PROTOCOL_ERROR),
        (frame_of(1, 0, 1, HEAD) + frame_of(6, 0, 0, b"x" * 8), Http2Fault.PROTOCOL_ERROR),
        (b"\x7f\xff\xff\0\0\0\0\0\1", Http2Fault.FRAME_SIZE_ERROR),
        (frame_of(1, 4 | 8, 1, b"\x09abc"), Http2Fault.PROTOCOL_ERROR),
    ],
)
def test_who_breaks_the_rules_is_told_goodbye(what: bytes, fault: Http2Fault) -> None:
    connection = begun()
    with pytest.raises(Http2Error) as caught:
        connection.feed(what, 0.0)
    assert caught.value.fault == fault
    (farewell,) = [each for each in frames(connection.out) if each[0] == 7]
    assert int.from_bytes(farewell[3][4:8]) == fault


@pytest.mark.parametrize(
    "what",
    [
        frame_of(6, 0, 0, b"x" * 8),  # pings
        frame_of(4, 0, 0),  # settings
        frame_of(2, 0, 1, b"x" * 5),  # priorities
    ],
)
def test_frames_that_bring_nothing_are_bounded(what: bytes) -> None:
    connection = begun()
    with pytest.raises(Http2Error) as caught:
        connection.feed(what * 5_000, 0.0)
    assert caught.value.fault == Http2Fault.ENHANCE_YOUR_CALM


def test_a_ping_a_second_is_answered_for_ever() -> None:
    connection = begun()
    for second in range(10_000):
        connection.feed(frame_of(6, 0, 0, b"x" * 8), float(second))
        assert len(connection.out) == 1
        connection.out.clear()


def test_who_reads_answers_may_ping_after_each_of_them() -> None:
    """Netty's client does; a busy one has thousands of answers in a second."""
    connection, ping = begun(), frame_of(6, 0, 0, b"x" * 8)
    for number in range(1, 10_001, 2):
        stream = connection.feed(call(number), 0.0)[0][1]
        connection.answer(stream, b"H", b"data", b"T")
        connection.feed(ping, 0.0)
    with pytest.raises(Http2Error):
        connection.feed(ping * 10_000, 0.0)


def test_streams_that_are_reset_at_once_are_bounded() -> None:
    connection = begun()
    pairs = [
        frame_of(1, 4, number, HEAD) + frame_of(3, 0, number, b"\0" * 4)
        for number in range(1, 10_000, 2)
    ]
    with pytest.raises(Http2Error) as caught:
        connection.feed(b"".join(pairs), 0.0)
    assert caught.value.fault == Http2Fault.ENHANCE_YOUR_CALM


def test_a_header_block_without_an_end_is_bounded() -> None:
    connection = begun()
    connection.feed(frame_of(1, 0, 1, HEAD), 0.0)
    with pytest.raises(Http2Error) as caught:
        connection.feed(frame_of(9, 0, 1, b"x" * 10_000) * 100, 0.0)
    assert caught.value.fault == Http2Fault.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x10", b"PRI * HTTP/1.1\r\n"])
def test_what_is_not_http2_is_refused(first: bytes) -> None:
    with pytest.raises(Http2Error, match="not HTTP/2"):
        Http2Connection().feed(first, 0.0)


def waiting(connection: Http2Connection, number: int, data: bytes) -> Stream:
    """Return a stream whose answer waits for a window."""
    stream = connection.feed(call(number), 0.0)[0][1]
    connection.send_head(stream, b"H")
    connection.send_data(stream, data)
    connection.end(stream, b"T")
    return stream


def test_settings_are_bounded_and_the_last_window_of_a_frame_counts() -> None:
    connection = begun()
    passes: list[int] = []

    def resize(window: int) -> None:
        passes.append(window)

    connection._resize = resize  # type: ignore[method-assign]
    connection.feed(frame_of(4, 0, 0, struct.pack(">HIHI", 4, 7, 4, 9)), 0.0)
    assert passes == [9]
    with pytest.raises(Http2Error) as caught:
        connection.feed(frame_of(4, 0, 0, struct.pack(">HI", 4, 7) * 33), 0.0)
    assert caught.value.fault is Http2Fault.ENHANCE_YOUR_CALM


def test_settings_cannot_make_a_window_too_large() -> None:
    connection = begun()
    waiting(connection, 1, b"x" * 70_000)
    connection.feed(frame_of(8, 0, 1, struct.pack(">I", 100_000)), 0.0)
    with pytest.raises(Http2Error) as caught:
        connection.feed(frame_of(4, 0, 0, struct.pack(">HI", 4, 2**31 - 1)), 0.0)
    assert caught.value.fault is Http2Fault.FLOW_CONTROL_ERROR


@pytest.mark.parametrize("number", [0, 1])
def test_updates_of_a_window_that_free_next_to_nothing_are_bounded(number: int) -> None:
    connection = begun()
    waiting(connection, 1, b"x" * 200_000)
    connection.feed(frame_of(8, 0, 1 - number, struct.pack(">I", 100_000)), 0.0)
    with pytest.raises(Http2Error) as caught:
        connection.feed(frame_of(8, 0, number, struct.pack(">I", 1)) * 3_000, 0.0)
    assert caught.value.fault is Http2Fault.ENHANCE_YOUR_CALM


def test_who_reads_may_update_its_windows_for_ever() -> None:
    connection = begun()
    update = struct.pack(">I", 5)
    for number in range(1, 20_000, 2):
        stream = connection.feed(call(number), 0.0)[0][1]
        connection.answer(stream, b"H", b"hello", b"T")
        connection.feed(frame_of(8, 0, 0, update) + frame_of(8, 0, number, update), 0.0)
        connection.out.clear()
    connection.invariants()


def test_the_rest_of_an_answer_is_not_copied() -> None:
    connection, data = begun(), b"x" * 100_000
    stream = waiting(connection, 1, data)
    for _ in range(3):
        assert stream.pending is not None
        assert stream.pending[0].obj is data
        connection.feed(frame_of(8, 0, 0, struct.pack(">I", 9)) * 2, 0.0)
        connection.feed(frame_of(8, 0, 1, struct.pack(">I", 9)), 0.0)
        connection.invariants()


def test_a_small_update_of_the_connection_looks_at_one_stream() -> None:
    connection = begun()
    connection.feed(frame_of(4, 0, 0, struct.pack(">HI", 4, 100_000)), 0.0)
    streams = [waiting(connection, number, b"x" * 70_000) for number in range(1, 200, 2)]
    looked_at: list[Stream] = []
    send = connection._send_pending

    def counted(stream: Stream) -> None:
        looked_at.append(stream)
        send(stream)

    connection._send_pending = counted  # type: ignore[method-assign]
    connection.feed(frame_of(8, 0, 0, struct.pack(">I", 1)) * 50, 0.0)
    assert len(looked_at) == 50
    connection.feed(frame_of(8, 0, 0, struct.pack(">I", 8_000_000)), 0.0)
    assert all(each.is_reset for each in streams)  # all have got all
    connection.invariants()


@pytest.mark.parametrize("how", ["window", "reset", "lost", "at once"])
def test_who_has_sent_data_is_told_once_whether_it_has_left(how: str) -> None:
    connection, told = begun(), list[bool]()
    stream = connection.feed(call(1), 0.0)[0][1]
    stream.on_left = told.append
    connection.send_head(stream, b"H")
    connection.send_data(stream, b"x" * (10 if how == "at once" else 70_000))
    connection.end(stream, b"T")
    assert told == ([True] if how == "at once" else [])
    if how == "window":
        update = struct.pack(">I", 10_000)
        connection.feed(frame_of(8, 0, 0, update) + frame_of(8, 0, 1, update), 0.0)
    elif how == "reset":
        connection.feed(frame_of(3, 0, 1, b"\0\0\0\0"), 0.0)
    connection.lose()
    assert told == [how in {"window", "at once"}]
    connection.invariants()


class Transport:
    """A socket that takes everything."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        assert data

    def get_write_buffer_size(self) -> int:
        return 0


def test_an_answer_on_a_connection_that_is_lost_has_not_left() -> None:
    async def run() -> None:
        connection = GrpcConnection(cast("Any", None), cast("Any", None))
        connection._transport = cast("Any", Transport())
        stream = connection._http2.feed(PREFACE + SETTINGS + call(1), 0.0)[0][1]
        told: list[bool] = []
        answers = [TYPES["ReceiveMessageResponse"](message={"body": b"x" * 70_000})]
        assert connection.send_answers(stream, answers, told.append)
        connection.end(stream, 0, "")
        assert not told
        connection.connection_lost(None)
        assert told == [False]
        assert not connection.send_answers(stream, answers, told.append)
        assert told == [False]

    asyncio.run(run())
