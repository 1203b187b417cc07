"""A peer of another protocol at the port of the remoting protocol: told in its own words."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.runtime.echo_server import connect, is_served, run, serving
from tests.runtime.tls_world import Certificates, connect_encrypted
from tests.waiting import eventually

from reliable_mq.gateway.hpack import block_of
from reliable_mq.gateway.http2_frames import PREFACE, frame_of
from reliable_mq.runtime.wrong_ports import at_grpc_port, at_remoting_port
from reliable_mq.wire.command import encode_command, request

CALL = block_of([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x/y")])
GRPC = PREFACE + frame_of(4, 0, 0)


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reliable_mq.runtime")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.__dict__["event"] == "wrong_port"]


def test_http_is_answered_and_closed_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving() as echo:
            good = await connect(echo)
            assert await is_served(*good)
            reader, writer = await connect(echo)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert answer.endswith(
                b"This port speaks Apache RocketMQ's remoting protocol, not HTTP.\n"
            )
            await eventually(lambda: len(echo.gone) == 1)
            assert await is_served(*good)

    run(test)
    assert len(told(caplog)) == len(caplog.records) == 1


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_the_first_call_of_a_grpc_client_is_refused_and_its_connection_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_encrypted: bool
) -> None:
    made = Certificates(tmp_path)

    async def test() -> None:
        with made.server("permissive") as tls:
            async with serving(tls=tls) as echo:
                echo.listener.grpc_port = 8081
                if is_encrypted:
                    reader, writer = await connect_encrypted(echo, made.client())
                else:
                    reader, writer = await connect(echo)
                writer.write(GRPC)
                await reader.readexactly(9)
                assert not echo.gone, "it has made no call yet"
                writer.write(frame_of(1, 5, 1, CALL) + frame_of(1, 5, 3, CALL))
                answer = await reader.read()
                assert b"not gRPC: port 8081 speaks gRPC" in answer
                await eventually(lambda: len(echo.gone) == 1)
                assert not echo.listener.connections

    run(test)
    (line,) = told(caplog)
    assert line.endswith("not gRPC: port 8081 speaks gRPC")


def test_a_grpc_client_that_breaks_the_rules_or_leaves_is_forgotten() -> None:
    async def test() -> None:
        async with serving() as echo:
            for number, rest in enumerate((b"\0" * 100 + b"\xff" * 100, b"")):
                reader, writer = await connect(echo)
                writer.write(GRPC)
                await reader.readexactly(9)
                writer.write(rest)
                writer.close()
                await eventually(lambda number=number: len(echo.gone) == number + 1)  # type: ignore[misc]
            assert not echo.listener.connections

    run(test)


def test_who_has_connected_again_within_a_minute_is_no_second_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving() as echo:
            for _ in range(20):
                reader, writer = await connect(echo)
                writer.write(b"HEAD / HTTP/1.1\r\n\r\n")
                await reader.read()

    run(test)
    assert len(told(caplog)) == 1


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"PRI", b"hello", b"\0\0\0\x10\0\0\0\x02{}", b"\xff" * 99]
)
def test_other_bytes_have_no_answer(data: bytes) -> None:
    assert at_remoting_port(data, 8081) == ""
    assert at_grpc_port(data, "") == (b"", "")


def test_without_a_port_for_grpc_the_commands_are_named() -> None:
    assert at_remoting_port(PREFACE, 0).endswith(
        "for gRPC, run `reliable-mq broker --grpc-port`, or `reliable-mq proxy`"
    )


def test_at_the_port_of_grpc_a_remoting_client_and_a_handshake_are_told() -> None:
    answer, why = at_grpc_port(encode_command(request(105, {"topic": "t"})), "no TLS")
    assert b"give this client the address of a name server" in answer
    assert why.startswith(
        "it speaks Apache RocketMQ's remoting protocol, and this port speaks gRPC"
    )
    assert at_grpc_port(b"\x16\3\1", "it speaks TLS, and there is none") == (
        b"",
        "it speaks TLS, and there is none",
    )


def test_a_connection_that_is_refused_has_a_second_to_read_why() -> None:
    """To close at once, with bytes unread, would drop the answer on its way."""

    async def test() -> None:
        async with serving() as echo:
            reader, writer = await connect(echo)
            begun = asyncio.get_running_loop().time()
            writer.write(GRPC + frame_of(1, 5, 1, CALL))
            await reader.read()
            assert asyncio.get_running_loop().time() - begun > 0.9

    run(test)
