"""Handshakes that are bad, half done or never end: each costs one line, and nobody else notices."""

import asyncio
import contextlib
import logging
import shutil
import socket
import struct
import time
from pathlib import Path

import pytest
from tests.runtime.echo_server import Echo, connect, is_served, run, serving
from tests.runtime.test_tls import hello, lines_of
from tests.runtime.tls_world import HOST, Certificates, connect_encrypted
from tests.waiting import eventually

from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_connection import TlsConnection
from reliable_mq.runtime.tls_settings import TlsSettings


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Note the lines of the listener."""
    caplog.set_level(logging.INFO, "reliable_mq.runtime")


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
        tls = ServerTls(made.settings())
        async with serving(tls=tls) as echo:
            good = await connect_encrypted(echo, made.client())  # as long as it needs
            tls.handshake_seconds = 0.05
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


def test_a_handshake_is_not_read_on_while_a_step_of_it_waits(made: Certificates) -> None:
    """Else a peer could queue steps without end, and each would count as a handshake."""

    class Paused(asyncio.Transport):
        reads = True

        def pause_reading(self) -> None:
            self.reads = False

        def resume_reading(self) -> None:
            self.reads = True

        def is_closing(self) -> bool:
            return False

        def write(self, data: object) -> None:
            pass

    async def test() -> None:
        with made.server() as tls:
            assert tls.context is not None
            transport = Paused()
            connection = TlsConnection(asyncio.Protocol(), tls, transport, tls.context)  # type: ignore[arg-type]
            connection.data_received(hello())
            assert not transport.reads
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert transport.reads
            connection.connection_lost(None)

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
            tls.handshake_seconds = 60.0
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


def test_steps_of_handshakes_leave_two_thirds_of_the_time_to_others() -> None:
    """However many wait: a stranger needs no account to begin one."""

    async def test() -> None:
        tls = ServerTls(TlsSettings())
        ended: list[float] = []

        def step() -> None:
            end = time.monotonic() + 0.003
            while time.monotonic() < end:
                pass
            ended.append(end)

        for _ in range(10):
            tls.take_step(step)
        began = time.monotonic()
        await eventually(lambda: len(ended) == 10)
        assert ended[-1] - began >= 9 * 0.009, "nine rests, and what comes before each"

    run(test)
