"""A peer that floods a server with cheap requests leaves the others their turn."""

import socket
import struct
import tracemalloc

import pytest
from tests.runtime.echo_server import (
    Echo,
    ask_when_seen,
    connect,
    is_served,
    run,
    serving,
    set_shares,
    turns_of,
)
from tests.waiting import eventually

from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import encode_command, request
from reliable_mq.wire.frame import JSON, encode_frame

SEND = encode_command(request(RequestCode.SEND_MESSAGE))  # its answer is always small


def test_many_small_requests_in_one_read_let_others_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other peer asks when the first of two hundred is handled; each takes a slice."""

    async def test() -> None:
        async with serving() as echo:
            other = socket.create_connection(("127.0.0.1", echo.listener.port))
            ask_when_seen(echo, 0, other, monkeypatch)
            _, writer = await connect(echo)
            writer.write(SEND * 200)
            await eventually(lambda: len(echo.seen) == 201)
            codes = [command.code for command in echo.seen]
            assert codes.index(9) < 20, codes
            other.close()

    set_shares(monkeypatch, slice=-1.0)
    run(test)


def test_what_many_peers_send_at_once_is_handled_in_many_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twenty peers send ten requests each, and the time of a turn is over at once."""

    async def test() -> None:
        async with serving() as echo:
            peers = [await connect(echo) for _ in range(20)]
            turns = turns_of(echo, 200, monkeypatch)
            for _, writer in peers:
                writer.write(SEND * 10)
            await eventually(lambda: len(turns) == 200)
            assert max(map(turns.count, turns)) <= 30, turns

    set_shares(monkeypatch, reads=0.0, turn=0.0)
    run(test)


def test_one_request_is_handled_at_once_however_much_others_have_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with serving() as echo:
            reader, writer = await connect(echo)
            assert await is_served(reader, writer)
            monkeypatch.setattr(echo.listener.turns, "has_time", lambda: False)
            monkeypatch.setattr(echo.listener, "_schedule_turn", lambda: None)
            _, busy = await connect(echo)
            busy.write(SEND * 10)
            await eventually(lambda: echo.listener._waiting)
            writer.write(SEND)
            await eventually(lambda: len(echo.seen) == 2)

    run(test)


def test_bytes_that_are_no_command_close_the_connection_behind_what_came_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving() as echo:
            _, writer = await connect(echo)
            writer.write(SEND * 100 + encode_frame(JSON, b"{nonsense") + SEND)
            await eventually(lambda: echo.gone)
            assert len(echo.seen) == 100
            other = await connect(echo)
            assert await is_served(*other)
            echo.listener.invariants()

    run(test)
    assert "closed, " in caplog.text


def test_a_frame_that_is_announced_takes_no_memory_before_it_comes() -> None:
    async def test() -> None:
        async with serving() as echo:
            peers = [await connect(echo) for _ in range(20)]
            tracemalloc.start()
            try:
                for _, writer in peers:
                    writer.write(struct.pack(">i", 16 * 1024 * 1024 - 8))
                await eventually(lambda: _received(echo) == 4 * len(peers))
                assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
            finally:
                tracemalloc.stop()

    run(test)


def _received(echo: Echo) -> int:
    return sum(each.received_size for each in echo.listener.connections.values())


def test_turns_are_short_while_somebody_sends_single_requests() -> None:
    """Then nobody who has much to do holds up the others. Later, long turns save work."""

    async def test() -> None:
        async with serving() as echo:
            assert echo.listener.slice_seconds == 0.001
            reader, writer = await connect(echo)
            assert await is_served(reader, writer)
            assert echo.listener.slice_seconds == 0.00025
            await eventually(lambda: echo.listener.slice_seconds == 0.001)
            writer.write(SEND * 100)
            await eventually(lambda: len(echo.seen) == 101)
            assert echo.listener.slice_seconds == 0.001, "many requests are no single one"
            writer.write(SEND)
            await eventually(lambda: len(echo.seen) == 102)
            assert echo.listener.slice_seconds == 0.001, "nobody else waits for this peer"
            assert await is_served(*await connect(echo))
            assert echo.listener.slice_seconds == 0.00025

    run(test)
