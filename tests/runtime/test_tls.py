"""Encrypted connections of a server: who is served, and what closes a connection in one line."""

import asyncio
import gc
import logging
import socket
import ssl
import struct
from pathlib import Path

import pytest
from tests.runtime.echo_server import connect, is_served, run, serving
from tests.runtime.tls_world import HOST, Certificates, connect_encrypted
from tests.waiting import eventually

from reliable_mq.line_limit import LINES_A_MINUTE
from reliable_mq.runtime.server_connection import ServerConnection
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.wire.command import encode_command, request

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Note the lines of the listener."""
    caplog.set_level(logging.INFO, "reliable_mq.runtime")


def lines_of(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [line.getMessage() for line in caplog.records if getattr(line, "event", "") == event]


async def body_of(reader: asyncio.StreamReader) -> bytes:
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    return await reader.readexactly(size)


def hello() -> bytes:
    """Return the first bytes of a client that begins a handshake."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_an_encrypted_connection_is_served(
    made: Certificates, mode: str, version: ssl.TLSVersion
) -> None:
    async def test() -> None:
        with made.server(mode) as tls:
            async with serving(tls=tls) as echo:
                reader, writer = await connect_encrypted(echo, made.client(version=version))
                assert await is_served(reader, writer)
                assert await is_served(reader, writer)
                assert echo.connections[0].address.startswith(HOST)
                assert tls.outcomes["done"] == 1
                writer.close()
                await eventually(lambda: len(echo.gone) == 1)

    run(test)


def test_a_permissive_server_serves_plain_connections_too(made: Certificates) -> None:
    async def test() -> None:
        with made.server("permissive") as tls:
            async with serving(tls=tls) as echo:
                assert await is_served(*await connect(echo))
                assert await is_served(*await connect_encrypted(echo, made.client()))
                assert tls.outcomes["plain"] == 0

    run(test)


def test_a_plain_connection_to_an_enforcing_server_is_closed_with_one_line(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                good = await connect_encrypted(echo, made.client())
                reader, writer = await connect(echo)
                writer.write(encode_command(request(7, body=b"let me in")))
                assert await reader.read() == b""
                assert echo.seen == []
                assert tls.outcomes["plain"] == 1
                assert await is_served(*good)

    run(test)
    assert len(lines_of(caplog, "tls_wanted")) == 1


def test_many_plain_connections_write_so_many_lines_and_no_more(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                for _ in range(LINES_A_MINUTE + 20):
                    _, writer = await connect(echo)
                    writer.write(b"\0")
                await eventually(lambda: tls.outcomes["plain"] == LINES_A_MINUTE + 20)

    run(test)
    assert len(lines_of(caplog, "tls_wanted")) <= LINES_A_MINUTE


@pytest.mark.parametrize("mode", ["disabled", "permissive"])
def test_a_handshake_with_a_server_without_tls_is_closed_with_a_line_that_says_why(
    mode: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def test() -> None:
        tls = ServerTls(Certificates(tmp_path).settings(mode, server_certPath=""))
        async with serving(tls=tls) as echo:
            reader, writer = await connect(echo)
            writer.write(hello())
            assert await reader.read() == b""

    run(test)
    (line,) = lines_of(caplog, "connection_cut")
    wanted = {"disabled": "tls.server.mode is disabled", "permissive": "tls.server.certPath"}
    assert wanted[mode] in line


@pytest.mark.parametrize("size", [1, 16 * 1024, 16 * 1024 + 1, 3_000_000])
def test_a_command_of_any_size_comes_and_is_answered(made: Certificates, size: int) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                reader, writer = await connect_encrypted(echo, made.client())
                body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
                writer.write(encode_command(request(7, body=body)))
                assert (await body_of(reader)).endswith(body)

    run(test)


def test_records_may_come_byte_by_byte(made: Certificates) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                client = made.client().wrap_bio(incoming, outgoing, server_hostname=HOST)
                reader, writer = await connect(echo)
                with pytest.raises(ssl.SSLWantReadError):
                    client.do_handshake()
                for byte in outgoing.read():
                    writer.write(bytes((byte,)))
                    await writer.drain()
                while True:
                    incoming.write(await reader.read(65536))
                    try:
                        client.do_handshake()
                    except ssl.SSLWantReadError:
                        continue
                    break
                client.write(encode_command(request(7, body=b"slow")))
                for byte in outgoing.read():
                    writer.write(bytes((byte,)))
                    await writer.drain()
                await eventually(lambda: len(echo.seen) == 1)

    run(test)


def test_requests_that_come_with_the_end_of_the_handshake_are_handled(made: Certificates) -> None:
    """A client may send them at once, more than a handshake may have, before it is answered."""

    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                reader, writer = await connect_encrypted(echo, made.client())
                writer.write(encode_command(request(7, body=b"x" * 2_000_000)))
                assert len(await body_of(reader)) > 2_000_000

    run(test)


def test_a_peer_that_does_not_read_is_not_read_from_until_it_does(made: Certificates) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(times=1024, tls=tls) as echo:
                reader, writer = await connect_encrypted(echo, made.client())
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                ask = encode_command(request(7, body=b"x" * 1024))
                writer.write(ask * 100)
                await eventually(lambda: len(echo.seen) > 0)
                seen = -1
                while seen < len(echo.seen):
                    seen = len(echo.seen)
                    for _ in range(50):
                        await asyncio.sleep(0)
                assert seen < 100
                writer.transport.resume_reading()  # type: ignore[attr-defined]
                for _ in range(100):
                    await body_of(reader)
                assert len(echo.seen) == 100

    run(test)


def test_a_connection_that_ends_says_so_to_its_peer(made: Certificates) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                with socket.create_connection((HOST, echo.listener.port)) as raw:
                    secured = await asyncio.to_thread(
                        made.client().wrap_socket,
                        raw,
                        server_hostname=HOST,
                        suppress_ragged_eofs=False,
                    )
                    await asyncio.to_thread(secured.sendall, encode_command(request(7)))
                    await eventually(lambda: len(echo.connections) == 1)
                    echo.listener.close_connection(echo.connections[0].id)
                    while await asyncio.to_thread(secured.recv, 1000):
                        pass  # an end without a close_notify would raise SSLEOFError
                    secured.close()

    run(test)


def test_a_silent_encrypted_connection_is_closed_as_a_plain_one(made: Certificates) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls, idle_seconds=0.2) as echo:
                await connect(echo)
                reader, writer = await connect_encrypted(echo, made.client())
                assert await is_served(reader, writer)
                await eventually(lambda: len(echo.gone) == 2)

    run(test)


def test_what_a_closed_connection_held_is_free_without_the_garbage_collector(
    made: Certificates,
) -> None:
    """The begin of a frame may have 16 MiB, and the collector may run much later."""

    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                reader, writer = await connect_encrypted(echo, made.client())
                assert await is_served(reader, writer)
                writer.write(encode_command(request(7, body=bytes(2**20)))[:-1])
                await writer.drain()
                writer.transport.abort()
                await eventually(lambda: len(echo.gone) == 1)
                left = [each for each in gc.get_objects() if isinstance(each, ServerConnection)]
                assert not left

    gc.collect()
    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()
