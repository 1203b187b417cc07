"""Encrypted connections of a server: who is served, and what closes a connection in one line."""

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import struct
from pathlib import Path

import pytest
from tests.runtime.echo_server import Echo, connect, is_served, run, serving
from tests.runtime.tls_world import HOST, Certificates, connect_encrypted
from tests.waiting import eventually

from reliable_mq.line_limit import LINES_A_MINUTE
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.wire.command import encode_command, request

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


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


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (hello()[:-20] + b"\xff" * 4_000, "handshake failed"),
        (b"\x16garbage after the first byte", "handshake failed"),
        (b"\x16\x03\x01\x00\x05hello", "handshake failed"),
    ],
    ids=["garbage after the hello", "garbage after one byte", "a record that is no hello"],
)
def test_what_is_no_handshake_closes_its_connection_with_one_line(
    made: Certificates, caplog: pytest.LogCaptureFixture, data: bytes, why: str
) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                good = await connect_encrypted(echo, made.client())
                reader, writer = await connect(echo)
                writer.write(data)
                await reader.read()
                await eventually(lambda: tls.outcomes["failed"] == 1)
                assert await is_served(*good)

    run(test)
    (line,) = lines_of(caplog, "tls_refused")
    assert why in line


def test_garbage_after_the_handshake_closes_the_connection_with_one_line(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                raw = socket.create_connection((HOST, echo.listener.port))
                raw.setblocking(True)
                secured = await asyncio.to_thread(
                    made.client().wrap_socket, raw, server_hostname=HOST
                )
                descriptor = secured.detach()
                with socket.socket(fileno=descriptor) as bare:
                    bare.sendall(b"\x17\x03\x03\x00\x20" + b"\xff" * 32)
                    await eventually(lambda: len(echo.gone) == 1)

    run(test)
    assert len(lines_of(caplog, "tls_broken")) == 1


def test_a_half_finished_handshake_is_given_up_after_its_time(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        tls = ServerTls(made.settings(), handshake_seconds=0.05)
        async with serving(tls=tls) as echo:
            good = await connect_encrypted(echo, made.client())
            reader, writer = await connect(echo)
            writer.write(hello()[:50])
            assert await reader.read() == b""
            await eventually(lambda: len(echo.gone) == 1)
            assert tls.outcomes["given_up"] == 1
            assert tls.outcomes["failed"] == 0
            assert await is_served(*good)

    run(test)
    (line,) = lines_of(caplog, "tls_given_up")
    assert "0.05 s" in line


def test_a_handshake_of_endless_length_is_refused(made: Certificates) -> None:
    """Its records announce a hello of 16 MiB."""

    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                _, writer = await connect(echo)
                piece = b"\x01\xff\xff\xff" + b"\0" * 16_000
                with contextlib.suppress(ConnectionError):
                    for _ in range(1_000):
                        writer.write(b"\x16\x03\x01" + struct.pack(">H", len(piece)) + piece)
                        await writer.drain()
                await eventually(lambda: tls.outcomes["failed"] == 1)
                await eventually(lambda: len(echo.gone) == 1)

    run(test)


def test_a_client_that_leaves_within_the_handshake_leaves_nothing_behind(
    made: Certificates,
) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                for _ in range(20):
                    _, writer = await connect(echo)
                    writer.write(hello()[:100])
                    await writer.drain()
                    writer.close()
                await eventually(lambda: len(echo.gone) == 20)
                assert tls.outcomes["failed"] == 20
                assert echo.listener.connections == {}

    run(test)


def test_a_connection_that_ends_says_so_to_its_peer(made: Certificates) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                reader, writer = await connect_encrypted(echo, made.client())
                assert await is_served(reader, writer)
                echo.listener.close_connection(echo.connections[0].id)
                assert await reader.read() == b"", "an end without a close_notify is an error"

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


def descriptors() -> int:
    """Return how many sockets this process has open."""
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one of this listing
            count += str(path.readlink()).startswith("socket:")
    return count


def test_no_descriptor_stays_open(made: Certificates) -> None:
    async def test() -> None:
        before = descriptors()
        tls = ServerTls(made.settings(), handshake_seconds=0.05)
        async with serving(tls=tls) as echo:
            with socket.create_connection((HOST, echo.listener.port)):
                inside = descriptors()
            for data in (b"", b"\0plain", hello(), hello()[:30], b"\x16\xff\xff\xff\xff\xff"):
                _, writer = await connect(echo)
                writer.write(data)
                await writer.drain()
                writer.close()
            await _leave(echo, made)
            await eventually(lambda: descriptors() <= inside)
        await eventually(lambda: descriptors() <= before)

    run(test)


async def _leave(echo: Echo, made: Certificates) -> None:
    reader, writer = await connect_encrypted(echo, made.client())
    assert await is_served(reader, writer)
    writer.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="not installed: openssl")
def test_a_client_cannot_repeat_its_handshake(made: Certificates) -> None:
    """A repeated one would cost the server much more than the client, again and again."""

    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                good = await connect_encrypted(echo, made.client())
                words = ("-connect", f"{HOST}:{echo.listener.port}", "-tls1_2", "-CAfile", made.ca)
                client = await asyncio.create_subprocess_exec(
                    "openssl",
                    "s_client",
                    *words,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )
                assert client.stdin is not None
                await eventually(lambda: tls.outcomes["done"] == 2)
                client.stdin.write(b"R\n")
                shown, _ = await client.communicate()
                assert b"RENEGOTIATING" in shown
                assert b"no renegotiation" in shown
                await eventually(lambda: len(echo.gone) == 1)
                assert tls.outcomes["done"] == 2
                assert await is_served(*good)

    run(test)
