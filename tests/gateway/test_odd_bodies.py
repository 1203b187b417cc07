"""Bodies of calls, commands and messages that are compressed, cut or too long."""

import asyncio

import pytest
from tests.gateway.test_call_body import body_of
from tests.gateway.test_grpc_connection import Scene, headers, message

from reliable_mq.gateway.call_body import BodyRefused, decode_call
from reliable_mq.gateway.http2_frames import frame_of
from reliable_mq.gateway.receiving import message_of
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.wire.compression import compress, flags_of
from reliable_mq.wire.record import Record

INTERNAL, UNIMPLEMENTED = 13, 12  # of gRPC
IDENTITY, GZIP = 1, 2


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", INTERNAL, "not one whole message"),
        (b"\0\0\0", INTERNAL, "not one whole message"),
        (b"\0\0\0\0\5abc", INTERNAL, "not one whole message"),
        (body_of(b"") * 2, INTERNAL, "not one whole message"),
        (b"\1\0\0\0\0", UNIMPLEMENTED, "compressed requests are not understood"),
        (body_of(b"\xff" * 100), INTERNAL, "cannot be decoded"),
    ],
)
def test_a_body_that_is_no_call_ends_its_stream_with_a_reason(
    body: bytes, status: int, text: str
) -> None:
    with pytest.raises(BodyRefused, match=text) as refused:
        decode_call("SendMessage", body)
    assert refused.value.status == status


@pytest.mark.parametrize(
    "begin",
    [b"\1\0\0\0\0", b"\0\0\x10\0\0"],
    ids=["compressed", "a mebibyte is announced, and does not come"],
)
def test_a_command_that_is_compressed_or_too_long_ends_its_stream_only(begin: bytes) -> None:
    async def run() -> None:
        scene = Scene()
        scene.connection.data_received(headers(1, "Telemetry") + frame_of(0, 0, 1, begin))
        scene.connection.data_received(headers(3, "Telemetry"))
        whole = message("TelemetryCommand", settings={"client_type": 1})
        scene.connection.data_received(frame_of(0, 0, 3, whole))
        assert scene.ended() == [1]
        assert b"a command is compressed or too long" in b"".join(scene.socket.data)
        assert len(scene.calls.told) == 1, "the other stream goes on"

    asyncio.run(run())


def given(body: bytes, flags: int) -> tuple[bytes, int]:
    """Return the body and its encoding as a client of the endpoint gets them."""
    record = Record(
        topic="orders",
        body=body,
        properties=b"",
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        sys_flag=flags,
        born_time_ms=1,
        store_time_ms=2,
    )
    got = message_of(record, {}, 0)
    return got.body, got.system_properties.body_encoding


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_a_body_that_clients_cannot_unpack_comes_unpacked_and_a_bomb_as_it_was_stored(
    kind: str,
) -> None:
    pytest.importorskip("lz4.frame" if kind == "lz4" else "backports.zstd")
    text, flags = b"a long text" * 1_000, flags_of(kind)
    packed, bomb = compress(text, kind), compress(bytes(MESSAGE_BODY_SIZE_MAX + 1), kind)
    assert len(bomb) < MESSAGE_BODY_SIZE_MAX / 100
    assert given(packed, flags) == (text, IDENTITY)
    for damaged in (bomb, packed[:-1], b"no frame"):
        assert given(damaged, flags) == (damaged, GZIP)


def test_a_body_in_zlib_comes_as_it_was_stored() -> None:
    for flags in (0x1, flags_of("zlib")):
        assert given(b"whatever it is", flags) == (b"whatever it is", GZIP)
    assert given(b"plain", 0) == (b"plain", IDENTITY)
