"""A stop: whoever reads gets the answers whole that are on their way, and nobody delays it long."""

import asyncio
import socket
import struct
from typing import cast

import pytest
from tests.runtime.echo_server import Echo, connect, run, serving, set_shares
from tests.waiting import eventually

from reliable_mq.runtime import listener
from reliable_mq.runtime.server_connection import ServerConnection
from reliable_mq.wire.command import encode_command, request

SIZE = 8 * 1024 * 1024


async def _slow_reader(echo: Echo) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with little room for answers."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    slow.connect(("127.0.0.1", echo.listener.port))
    slow.setblocking(False)
    return await asyncio.open_connection(sock=slow, limit=1_024)


async def _answering(echo: Echo, writer: asyncio.StreamWriter, count: int) -> ServerConnection:
    """Ask for long answers, until the first one is on its way."""
    writer.write(encode_command(request(9, body=bytes(1_024))) * count)
    held = cast("dict[int, ServerConnection]", echo.listener.connections)
    await eventually(lambda: any(each._outbox.frames for each in held.values()))
    (connection,) = held.values()
    return connection


def test_a_long_answer_that_is_on_its_way_is_written_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its requests behind it are left undone: the owner takes none any more."""
    monkeypatch.setattr(listener, "FINISH_SECONDS", 60.0)
    set_shares(monkeypatch, written=1)

    async def scene() -> None:
        async with serving(times=SIZE // 1_024) as echo:
            reader, writer = await _slow_reader(echo)
            await _answering(echo, writer, 3)
            seen = len(echo.seen)
            closing = asyncio.ensure_future(echo.listener.close())
            received = await reader.read()
            await closing
            (length,) = struct.unpack(">i", received[:4])
            assert len(received) == 4 + length > SIZE
            assert len(echo.seen) == seen == 1
            writer.close()

    run(scene)


def test_a_peer_that_reads_nothing_delays_a_stop_by_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "FINISH_SECONDS", 0.1)

    async def scene() -> None:
        async with serving(times=SIZE // 1_024) as echo:
            reader, writer = await _slow_reader(echo)
            connection = await _answering(echo, writer, 1)
            await echo.listener.close()
            assert connection._transport.is_closing()
            assert not reader.at_eof()
            writer.transport.abort()

    run(scene)


def test_a_stop_waits_for_nobody_who_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "FINISH_SECONDS", 3_600.0)

    async def scene() -> None:
        async with serving() as echo:
            reader, writer = await connect(echo)
            writer.write(encode_command(request(9, body=b"x")))
            await reader.readexactly(4)
            await echo.listener.close()
            writer.close()

    run(scene)
