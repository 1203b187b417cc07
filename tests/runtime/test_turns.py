"""Connections that have much to do take turns, and let others in between."""

import asyncio
import itertools
import socket
from collections.abc import Iterable

import pytest
from tests.runtime.echo_server import connect, is_served, run, serving
from tests.waiting import eventually

from reliable_mq.broker_core.state import Connection
from reliable_mq.runtime import listener, server_connection
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, encode_command, request


def test_a_peer_that_asks_for_much_in_one_read_lets_others_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each command takes longer than a slice; the other peer asks while the first is handled."""

    async def test() -> None:
        async with serving() as echo:
            other = socket.create_connection(("127.0.0.1", echo.listener.port))
            reader, writer = await connect(echo)
            assert await is_served(reader, writer)
            received = echo.received

            def receive(connection: Connection, commands: Iterable[Command]) -> None:
                if len(echo.seen) == 1:
                    other.sendall(encode_command(request(9)))
                received(connection, commands)

            monkeypatch.setattr(echo, "received", receive)
            writer.write(encode_command(request(8)) * 10)
            await eventually(lambda: len(echo.seen) == 12)
            codes = [command.code for command in echo.seen]
            assert codes.index(9) < 6, codes
            other.close()

    monkeypatch.setattr(server_connection, "_SLICE_SECONDS", -1.0)
    run(test)


def test_large_answers_that_take_long_are_made_in_many_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten peers ask at once, and one of the answers takes all the time of a turn."""

    async def test() -> None:
        async with serving() as echo:
            loop = asyncio.get_running_loop()
            turns: list[int] = []
            number = 0

            def count() -> None:
                nonlocal number
                number += 1
                if len(turns) < 10:
                    loop.call_soon(count)

            received = echo.received

            def receive(connection: Connection, commands: Iterable[Command]) -> None:
                before = len(echo.seen)
                received(connection, commands)
                turns.extend([number] * (len(echo.seen) - before))

            monkeypatch.setattr(echo, "received", receive)
            peers = [await connect(echo) for _ in range(10)]
            count()
            for _, writer in peers:
                writer.write(encode_command(request(9)))
            await eventually(lambda: len(turns) == 10)
            assert max(map(turns.count, turns)) <= 2, turns

    monkeypatch.setattr(listener, "_LARGE_SECONDS", 0.0)
    run(test)


@pytest.mark.parametrize("busy_peers", [1, 3])
def test_peers_that_have_much_to_do_take_turns_with_one_that_asks_for_little(
    busy_peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer takes all the time of a turn, and the busy peers have fifty to come."""

    async def test() -> None:
        async with serving() as echo:
            other = socket.create_connection(("127.0.0.1", echo.listener.port))
            peers = [await connect(echo) for _ in range(busy_peers)]
            received = echo.received

            def receive(connection: Connection, commands: Iterable[Command]) -> None:
                if len(echo.seen) == busy_peers:
                    other.sendall(encode_command(request(9)))
                received(connection, commands)

            monkeypatch.setattr(echo, "received", receive)
            for _, writer in peers:
                writer.write(encode_command(request(8)) * 50)
            await eventually(lambda: len(echo.seen) == 50 * busy_peers + 1)
            codes = [command.code for command in echo.seen]
            assert codes.index(9) < 8 * (1 + busy_peers), codes
            other.close()

    monkeypatch.setattr(listener, "_LARGE_SECONDS", 0.0)
    monkeypatch.setattr(listener, "_TURN_SECONDS", 0.0)
    run(test)


def test_a_peer_that_does_not_read_or_is_gone_keeps_nobody_from_their_turn() -> None:
    """Both have requests left that wait for a turn."""

    async def test() -> None:
        async with serving(times=4) as echo:
            deaf = [await connect(echo) for _ in range(2)]
            ask = encode_command(request(8, body=b"x" * 1024 * 1024))
            for _, writer in deaf:
                writer.write(ask * 20)
            await eventually(lambda: len(echo.connections) == 2)
            deaf[0][1].transport.abort()
            assert await is_served(*await connect(echo))
            await eventually(lambda: len(echo.gone) == 1)
            assert len(echo.seen) < 40
            assert await is_served(*await connect(echo))
            deaf[1][1].transport.abort()

    run(test)


def test_commands_that_an_owner_leaves_are_handed_over_again() -> None:
    """The owner takes one command of those that one read brought, and asks for the others."""

    async def test() -> None:
        async with serving() as echo:
            received = echo.received

            def receive(connection: Connection, commands: Iterable[Command]) -> bool:
                some = list(itertools.islice(commands, 1))
                received(connection, some)
                return bool(some)

            echo.received = receive  # type: ignore[assignment, method-assign]
            _, writer = await connect(echo)
            frames = [encode_command(request(RequestCode.SEND_MESSAGE, {"n": n})) for n in "123"]
            writer.write(b"".join(frames))
            await eventually(lambda: len(echo.seen) == 3)
            assert [command.ext_fields["n"] for command in echo.seen] == ["1", "2", "3"]

    run(test)
