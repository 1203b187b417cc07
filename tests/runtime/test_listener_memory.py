"""What all connections together may make a server keep."""

import asyncio
import contextlib
import socket
import struct
from functools import partial

import pytest
from tests.runtime.echo_server import Echo, connect, is_served, run, serving
from tests.waiting import eventually

from reliable_mq.runtime.connection_limits import ConnectionLimits
from reliable_mq.wire.command import encode_command, request


def _are_gone(echo: Echo, count: int) -> bool:
    return len(echo.gone) >= count


def test_frames_that_do_not_come_in_whole_take_so_much_memory_of_all_connections_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving(limits=ConnectionLimits(received_size=1_000_000)) as echo:
            part = encode_command(request(7, body=b"x" * 100_000))[:-1]
            peers = []
            for count in range(1, 16):
                peers.append(await connect(echo))
                peers[-1][1].write(part)
                await eventually(partial(_are_gone, echo, max(0, count - 9)))
            assert len(echo.gone) == 6
            assert await peers[0][0].read() == b"", "the oldest goes first"
            reader, writer = peers[-1]
            writer.write(b"x")
            length = struct.unpack(">i", await reader.readexactly(4))[0]
            await reader.readexactly(length)

    run(test)
    assert "frames that have not come in whole take too much memory" in caplog.text


def test_a_peer_whose_frames_come_whole_is_not_closed_for_those_of_others() -> None:
    async def test() -> None:
        async with serving(limits=ConnectionLimits(received_size=1_000_000)) as echo:
            frame = encode_command(request(7, body=b"x" * 100_000))
            reader, writer = await connect(echo)
            for _ in range(15):
                writer.write(frame[:50_000])
                _, other = await connect(echo)
                other.write(frame[:-1])
                await eventually(lambda: True)
                writer.write(frame[50_000:])
                length = struct.unpack(">i", await reader.readexactly(4))[0]
                await reader.readexactly(length)

    run(test)


def test_one_byte_now_and_then_does_not_keep_a_frame_alive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving(idle_seconds=0.4) as echo:
            reader, writer = await connect(echo)
            writer.write(encode_command(request(7, body=b"x" * 10_000))[:5_000])
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"x")
                    await writer.drain()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1), 0.05)
            await eventually(lambda: len(echo.gone) == 1)
            assert not echo.seen

    run(test)
    assert "of a frame came, and no more" in caplog.text


def test_answers_that_nobody_reads_take_so_much_memory_of_all_connections_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ten peers ask for 15 MiB each and read nothing; another one asks, and reads."""

    async def test() -> None:
        async with serving(
            times=15 * 1024, limits=ConnectionLimits(unsent_size=32 * 1024 * 1024)
        ) as echo:
            loop = asyncio.get_running_loop()
            silent = []
            for _ in range(10):
                client = socket.create_connection(("127.0.0.1", echo.listener.port))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
                client.setblocking(False)
                await loop.sock_sendall(client, encode_command(request(7, body=b"x" * 1024)))
                silent.append(client)
            await eventually(lambda: len(echo.gone) >= 5)
            reader, writer = await connect(echo)
            assert await is_served(reader, writer)
            for client in silent:
                client.close()

    run(test)
    assert "does not read its answers" in caplog.text


def test_an_answer_of_which_the_system_has_taken_a_part_counts_whole() -> None:
    """The system takes some MiB of each answer; what is left of two would be below the limit."""

    async def test() -> None:
        async with serving(
            times=8 * 1024, limits=ConnectionLimits(unsent_size=14 * 1024 * 1024)
        ) as echo:
            writers = []
            for _ in range(2):
                _, writer = await connect(echo)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(encode_command(request(7, body=b"x" * 1024)))
                writers.append(writer)
            await eventually(lambda: len(echo.gone) == 1)
            for writer in writers:
                writer.close()

    run(test)
