"""Connections of a server: bad bytes, slow readers, many that say nothing."""

import asyncio
import contextlib
import logging
import os
import socket
import struct

import pytest
from tests.runtime.echo_server import Echo, connect, is_served, run, serving
from tests.waiting import TURNS, eventually

from reliable_mq.errors import AddressRefused
from reliable_mq.line_limit import LINES_A_MINUTE
from reliable_mq.runtime import listener
from reliable_mq.runtime.listener import Listener
from reliable_mq.runtime.server_connection import ServerConnection
from reliable_mq.wire.command import encode_command, reply, request
from reliable_mq.wire.record import pack_host

BAD = {
    "a frame over 16 MiB": struct.pack(">i", 16 * 1024 * 1024 + 1),
    "a negative length": struct.pack(">i", -1),
    "a length of nothing": struct.pack(">i", 0),
    "a header longer than its frame": struct.pack(">ii", 10, 1000) + b"{}",
    "a header that is no JSON": struct.pack(">ii", 4 + 5, 5) + b"hello",
    "a header that is a list": struct.pack(">ii", 4 + 2, 2) + b"[]",
    "a header as deep as a well": struct.pack(">ii", 4 + 9000, 9000) + b"[" * 9000,
    "a header of another type": struct.pack(">iI", 4 + 2, 9 << 24 | 2) + b"{}",
    "half a compact header": struct.pack(">iI", 4 + 2, 1 << 24 | 2) + b"{}",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bytes_that_are_no_frame_close_their_connection_with_one_line(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving() as echo:
            good = await connect(echo)
            assert await is_served(*good)
            reader, writer = await connect(echo)

            writer.write(data + b"and more, to be dropped")

            assert await reader.read() == b""
            await eventually(lambda: len(echo.gone) == 1)
            assert await is_served(*good), "the others never notice"
            assert len(caplog.records) == 1
            assert "closed, " in caplog.text

    caplog.set_level(logging.INFO, "reliable_mq.runtime.server_connection")
    run(test)


def test_a_frame_that_its_peer_does_not_finish_is_told_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving() as echo:
            _, writer = await connect(echo)
            writer.write(encode_command(request(7, body=b"x" * 100))[:-1])
            await writer.drain()
            writer.close()
            await eventually(lambda: len(caplog.records) == 1)
            await asyncio.sleep(0)
            assert echo.seen == []

    caplog.set_level(logging.INFO, "reliable_mq.runtime.server_connection")
    run(test)
    (record,) = caplog.records
    assert "closed by the peer within a frame" in record.getMessage()


def test_many_bad_connections_write_so_many_lines_and_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving() as echo:
            for _ in range(LINES_A_MINUTE + 20):
                reader, writer = await connect(echo)
                writer.write(b"\xff" * 8)
                assert await reader.read() == b""
                writer.close()

    caplog.set_level(logging.INFO, "reliable_mq.runtime.server_connection")
    run(test)
    assert len(caplog.records) <= LINES_A_MINUTE


def test_a_peer_that_comes_and_goes_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving() as echo:
            reader, writer = await connect(echo)
            assert await is_served(reader, writer)
            writer.close()
            await eventually(lambda: len(echo.gone) == 1)

    caplog.set_level(logging.INFO, "reliable_mq.runtime.server_connection")
    run(test)
    assert caplog.records == []


def test_a_command_may_come_byte_by_byte() -> None:
    async def test() -> None:
        async with serving() as echo:
            reader, writer = await connect(echo)
            for byte in encode_command(request(7, body=b"slow")):
                writer.write(bytes((byte,)))
                await writer.drain()
            assert b"slow" in await reader.read(1000)
            assert len(echo.seen) == 1

    run(test)


def test_a_peer_that_does_not_read_is_not_read_from_until_it_does() -> None:
    """Each request is answered with 1 MiB; the peer asks for 400 of them before it reads one."""

    async def test() -> None:
        async with serving(times=1024) as echo:
            loop = asyncio.get_running_loop()
            client = socket.create_connection(("127.0.0.1", echo.listener.port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.setblocking(False)
            ask = encode_command(request(7, body=b"x" * 1024))
            sending = asyncio.create_task(loop.sock_sendall(client, ask * 400))
            await eventually(lambda: len(echo.seen) > 0)
            await _is_quiet(echo)
            assert len(echo.seen) <= 32, "most requests are left alone"

            expected = 400 * len(encode_command(reply(request(7), body=b"x" * 1024 * 1024)))
            got = 0
            while got < expected:
                got += len(await loop.sock_recv(client, 1 << 20))
            await sending
            assert len(echo.seen) == 400
            client.close()

    run(test)


async def _is_quiet(echo: Echo) -> None:
    """Return when the loop has read another socket often, and brought no command meanwhile."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    here, there = socket.socketpair()
    with here, there:
        loop.add_reader(there.fileno(), came.set)
        count, rounds = -1, 0

        async def has_passed_over() -> bool:
            nonlocal count, rounds
            came.clear()
            here.send(b"x")
            await came.wait()  # the loop has asked the kernel what can be read
            there.recv(1)
            rounds = rounds + 1 if len(echo.seen) == count else 0
            count = len(echo.seen)
            return rounds > 2 * TURNS

        await eventually(has_passed_over, lambda: f"{count} commands, {rounds} rounds")
        loop.remove_reader(there.fileno())


def test_a_connection_that_is_silent_both_ways_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving(idle_seconds=0.2) as echo:
            reader, writer = await connect(echo)
            writer.write(encode_command(request(7))[:-1])
            with contextlib.suppress(ConnectionResetError):  # where the bytes were not read yet
                assert await reader.read() == b""
            await eventually(lambda: bool(caplog.records))
            assert [record.levelname for record in caplog.records] == ["INFO"], "one line"
            assert "silent" in caplog.text

    caplog.set_level(logging.INFO, "reliable_mq.runtime.server_connection")
    run(test)


def test_silent_connections_are_looked_for_a_few_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look at 10,000 at once would hold the loop up for 4 ms, every 30 seconds."""
    looks: list[int] = []
    look = ServerConnection.close_if_idle
    turns = [0]

    def counted(connection: ServerConnection, silent_since: float) -> None:
        looks.append(turns[0])
        look(connection, silent_since)

    async def test() -> None:
        async with serving(idle_seconds=0.4) as echo:
            loop = asyncio.get_running_loop()

            def turn() -> None:
                turns[0] += 1
                loop.call_soon(turn)

            turn()
            peers = [await connect(echo) for _ in range(20)]
            await eventually(lambda: len(echo.gone) == len(peers))
            assert len(looks) >= len(peers)
            assert max(map(looks.count, looks)) <= 3, looks

    monkeypatch.setattr(listener, "_CHECKED_AT_ONCE", 3)
    monkeypatch.setattr(ServerConnection, "close_if_idle", counted)
    run(test)


def test_answers_keep_a_connection_alive() -> None:
    async def test() -> None:
        async with serving() as echo:
            reader, writer = await connect(echo)
            assert await is_served(reader, writer)
            (connection,) = echo.listener.connections.values()
            assert isinstance(connection, ServerConnection)
            loop, last = asyncio.get_running_loop(), connection._last_used
            await eventually(lambda: loop.time() > last)
            silent_since = loop.time()
            echo.listener.send(echo.connections[0].id, [b"more"])
            connection.close_if_idle(silent_since)
            assert await reader.readexactly(4) == b"more"
            assert await is_served(reader, writer)

    run(test)


def test_a_thousand_silent_connections_disturb_nobody() -> None:
    async def test() -> None:
        async with serving() as echo:
            idle = [await connect(echo) for _ in range(1000)]
            reader, writer = await connect(echo)
            assert await is_served(reader, writer)
            for _, other in idle:
                other.close()
            await eventually(lambda: len(echo.gone) == 1000)

    run(test)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_peers_come_over_ipv6_and_ipv4_alike() -> None:
    async def test() -> None:
        async with serving("::1") as echo:
            assert await is_served(*await connect(echo, "::1"))
            (peer,) = echo.connections
            assert peer.address.startswith("::1:")
            assert peer.host == pack_host("::1", int(peer.address.rpartition(":")[2]))

    run(test)


def test_nobody_is_served_before_the_owner_is_ready() -> None:
    async def test() -> None:
        echo = Echo()
        await echo.listener.bind("127.0.0.1", 0)
        with pytest.raises(ConnectionError):
            await connect(echo)
        await echo.listener.serve()
        assert await is_served(*await connect(echo))
        await echo.listener.close()

    run(test)


def test_an_address_that_is_taken_is_named() -> None:
    async def test() -> None:
        async with serving() as echo:
            with pytest.raises(AddressRefused) as caught:
                await Listener(echo).bind("127.0.0.1", echo.listener.port)
            assert f"127.0.0.1:{echo.listener.port}: cannot listen here" in str(caught.value)
            assert os.linesep not in str(caught.value)

    run(test)


def test_after_reading_stopped_answers_still_leave() -> None:
    async def test() -> None:
        async with serving() as echo:
            reader, writer = await connect(echo)
            assert await is_served(reader, writer)
            echo.listener.stop_reading()
            writer.write(encode_command(request(8)))
            await _is_quiet(echo)
            assert [command.code for command in echo.seen] == [7]
            echo.listener.send(echo.connections[0].id, [b"last words"])
            assert await reader.readexactly(10) == b"last words"

    run(test)
