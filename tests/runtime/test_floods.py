"""A peer that floods a server with cheap requests leaves the others their turn."""

import socket
import struct
import time
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

from reliable_mq.runtime import flood_pace
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


def test_floods_that_have_begun_many_queues_wait_until_these_exist() -> None:
    """They come into being in one go. Single requests are served meanwhile."""

    async def test() -> None:
        async with serving() as echo:
            honest = await connect(echo)
            _, flooder = await connect(echo)
            assert await is_served(*honest)
            echo.listener.is_held_back = True
            flooder.write(SEND * 10)
            await eventually(lambda: echo.listener._waiting)
            assert await is_served(*honest)
            assert len(echo.seen) == 2
            echo.listener.invariants()

            echo.listener.go_on()
            await eventually(lambda: len(echo.seen) == 12)

    run(test)


def test_much_that_is_created_is_a_flood_only_while_somebody_sends_single_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with serving() as echo:
            listener, most = echo.listener, flood_pace._NEW_AT_ONCE
            listener.pace.created = lambda: 1_000 + len(echo.seen)
            assert await is_served(*await connect(echo))
            listener.is_held_back = True
            flooder = await connect(echo)
            flooder[1].write(SEND * (most + 1))
            await eventually(lambda: listener._waiting)
            listener.is_held_back = False
            listener._schedule_turn()
            await eventually(lambda: len(echo.seen) == most + 2)
            monkeypatch.setattr(flood_pace, "CREATED_A_SECOND", 1e-6)
            listener.turns.single_at = 0.0
            listener.hold_flood(is_storing=True)
            assert not listener.is_held_back, "nobody waits for a send"
            assert not listener.pace.creators, "what was created before does not count later"

            listener.turns.single_at = time.monotonic() + 60
            listener.hold_flood(is_storing=True)
            assert listener.is_held_back
            listener.go_on()
            listener.hold_flood(is_storing=True)
            assert not listener.is_held_back, "nothing was created since"
            echo.seen += echo.seen
            listener.hold_flood(is_storing=False)
            assert not listener.is_held_back, "nothing would end it"
            assert listener.pace.is_on

    run(test)


def test_who_has_created_much_waits_for_its_pace_and_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The files of many new queues would make each sync slow, and so each send of others."""

    async def test() -> None:
        async with serving() as echo:
            listener = echo.listener
            honest, (_busy, busy) = await connect(echo), await connect(echo)
            _creator, creator = await connect(echo)
            is_creating = True
            listener.pace.created = lambda: len(echo.seen) if is_creating else 0
            monkeypatch.setattr(flood_pace, "CREATED_A_SECOND", 1e-6)
            assert await is_served(*honest)
            listener.is_held_back = True
            creator.write(SEND * 10)
            await eventually(lambda: listener._waiting)
            listener.is_held_back = False
            listener._schedule_turn()
            await eventually(lambda: len(echo.seen) == 11)
            monkeypatch.setattr(flood_pace, "_NEW_AT_ONCE", 0)
            listener.hold_flood(is_storing=True)
            is_creating = False

            creator.write(SEND * 10)
            await eventually(lambda: listener.pace.held)
            busy.write(SEND * 10)
            await eventually(lambda: listener._waiting)
            listener.invariants()
            listener.go_on()
            await eventually(lambda: len(echo.seen) == 21)
            assert await is_served(*honest)
            assert listener.pace.held

            listener.pace._let_on()
            await eventually(lambda: len(echo.seen) == 32)
            assert not listener.pace.held

            listener.is_held_back = True
            creator.write(SEND * 10)
            await eventually(lambda: listener._waiting)
            assert not listener.pace.held, "it has created nothing since"

    run(test)


def test_a_connection_that_closes_while_it_waits_for_its_pace_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with serving() as echo:
            listener = echo.listener
            _, creator = await connect(echo)
            await eventually(lambda: listener.connections)
            (held,) = listener.connections.values()
            assert await is_served(*await connect(echo))
            monkeypatch.setattr(flood_pace, "CREATED_A_SECOND", 1e-6)
            monkeypatch.setattr(flood_pace, "_NEW_AT_ONCE", 0)
            listener.pace.created = lambda: 1
            listener.pace.note(held, 0)
            listener.hold_flood(is_storing=True)
            creator.write(SEND * 10)
            await eventually(lambda: listener.pace.held)
            held.cut_off("the test wants it")
            await eventually(lambda: held not in listener.connections.values())
            assert not listener.pace.held

    run(test)
