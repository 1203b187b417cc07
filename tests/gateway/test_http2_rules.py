"""Rules of HTTP/2 that few peers break: each fault by its name, and what is allowed."""

import pytest
from tests.gateway.test_http2 import HEAD, SETTINGS, begun, call

from reliable_mq.gateway.http2 import Http2Connection
from reliable_mq.gateway.http2_frames import (
    BEGUN,
    ENDED,
    PREFACE,
    STREAMS_MAX,
    Http2Error,
    Http2Fault,
    frame_of,
)


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        (frame_of(6, 0, 0, b"x" * 8), Http2Fault.PROTOCOL_ERROR),  # before any settings
        (SETTINGS + frame_of(6, 0, 1, b"x" * 8), Http2Fault.PROTOCOL_ERROR),
        (SETTINGS + frame_of(1, 0x24, 1, b"xy"), Http2Fault.FRAME_SIZE_ERROR),
        (SETTINGS + frame_of(4, 1, 0, b"\0" * 6), Http2Fault.FRAME_SIZE_ERROR),
    ],
)
def test_frames_that_cannot_be_are_named_as_in_the_rules(what: bytes, fault: Http2Fault) -> None:
    with pytest.raises(Http2Error) as caught:
        Http2Connection().feed(PREFACE + what, 0.0)
    assert caught.value.fault is fault


def test_headers_may_end_with_an_empty_continuation() -> None:
    data = frame_of(1, 1, 1, HEAD) + frame_of(9, 4, 1, b"")
    assert [kind for kind, _ in begun().feed(data, 0.0)] == [BEGUN, ENDED]


def test_trailers_of_a_stream_that_the_server_has_ended_are_ignored() -> None:
    connection = begun()
    stream = connection.feed(frame_of(1, 4, 1, HEAD), 0.0)[0][1]
    connection.end(stream, b"T")
    assert connection.feed(frame_of(1, 5, 1, HEAD), 0.0) == []
    assert connection.feed(call(3), 0.0)


def test_streams_that_are_refused_are_bounded() -> None:
    connection = begun()
    connection.feed(b"".join(frame_of(1, 4, 2 * n + 1, HEAD) for n in range(STREAMS_MAX)), 0.0)
    more = range(2 * STREAMS_MAX + 1, 2 * STREAMS_MAX + 10_001, 2)
    with pytest.raises(Http2Error, match="bring nothing"):
        connection.feed(b"".join(frame_of(1, 4, number, HEAD) for number in more), 0.0)
