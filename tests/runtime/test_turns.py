"""Connections that have much to do take turns, and let others in between."""

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import Iterable

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

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import InvariantBroken
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
            ask_when_seen(echo, 1, other, monkeypatch)
            writer.write(encode_command(request(8)) * 10)
            await eventually(lambda: len(echo.seen) == 12)
            codes = [command.code for command in echo.seen]
            assert codes.index(9) < 6, codes
            other.close()

    set_shares(monkeypatch, slice=-1.0)
    run(test)


def test_large_answers_that_take_long_are_made_in_many_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten peers ask at once, and one of the answers takes all the time of a turn."""

    async def test() -> None:
        async with serving() as echo:
            peers = [await connect(echo) for _ in range(10)]
            turns = turns_of(echo, 10, monkeypatch)
            for _, writer in peers:
                writer.write(encode_command(request(9)))
            await eventually(lambda: len(turns) == 10)
            assert max(map(turns.count, turns)) <= 2, turns

    set_shares(monkeypatch, large=0.0)
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
            ask_when_seen(echo, busy_peers, other, monkeypatch)
            for _, writer in peers:
                writer.write(encode_command(request(8)) * 50)
            await eventually(lambda: len(echo.seen) == 50 * busy_peers + 1)
            codes = [command.code for command in echo.seen]
            assert codes.index(9) < 8 * (1 + busy_peers), codes
            asked = [connection for connection, _ in echo.batches]
            busy = {*asked} - {other_id(echo)}
            # While all of them wait: the last one was read, and none has had its last turn.
            begin = max(map(asked.index, busy)) + 2 * busy_peers
            end = min(len(asked) - asked[::-1].index(each) for each in busy) - busy_peers
            middle = asked[begin:end]
            turns = [set(middle[at : at + busy_peers]) for at in range(len(middle) - busy_peers)]
            own = [each for each in turns if other_id(echo) not in each]
            assert {len(each) for each in own} <= {busy_peers}, asked
            other.close()

    set_shares(monkeypatch, large=0.0, reads=0.0, turn=0.0, slice=-1.0, shared_slice=-1.0)
    run(test)


def other_id(echo: Echo) -> int:
    """The connection that was made first."""
    return min(each.id for each in echo.connections)


@pytest.mark.parametrize(("seconds", "at_once"), [(60.0, 4), (0.0, 1)])
def test_while_others_wait_slow_requests_are_handled_one_by_one_and_quick_ones_four_at_once(
    seconds: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never more than four before the owner had the time to answer."""

    async def test() -> None:
        async with serving() as echo:
            loop, unanswered = asyncio.get_running_loop(), Counter[int]()
            most = 0

            def receive(connection: PeerConnection, commands: Iterable[Command]) -> None:
                nonlocal most
                before = len(echo.seen)
                received(connection, commands)
                unanswered[connection.id] += len(echo.seen) - before
                most = max(most, unanswered[connection.id])
                loop.call_soon(unanswered.clear)

            received = echo.received
            monkeypatch.setattr(echo, "received", receive)
            peers = [await connect(echo) for _ in range(3)]
            for _, writer in peers:
                writer.write(encode_command(request(8)) * 24)
            await eventually(lambda: len(echo.seen) == 72)
            middle = [count for _, count in echo.batches[4:-4]]
            assert set(middle) == {at_once}, echo.batches
            assert most == 4 or at_once == 1

    set_shares(monkeypatch, shared_slice=seconds, turn=60.0, large=60.0)
    run(test)


def test_peers_that_do_not_read_wait_for_no_turn_and_one_that_reads_again_is_served() -> None:
    async def test() -> None:
        async with serving(times=4) as echo:
            deaf = [await connect(echo) for _ in range(2)]
            ask = encode_command(request(8, body=b"x" * 1024 * 1024))
            for _, writer in deaf:
                writer.write(ask * 20)
            await eventually(lambda: len(echo.connections) == 2)
            await eventually(lambda: not (echo.listener._waiting or echo.listener._is_turn_due))
            assert len(echo.seen) < 40
            other = await connect(echo)
            assert await is_served(*other)
            deaf[0][1].transport.abort()
            await eventually(lambda: len(echo.gone) == 1)
            reader, writer = deaf[1]
            (left,) = [each for each in echo.connections[:2] if each not in echo.gone]
            while handled(echo, left) < 20:
                assert await reader.read(1 << 24)
                echo.listener.invariants()
            assert await is_served(*other)
            writer.transport.abort()

    run(test)


def test_a_peer_that_is_gone_while_it_waits_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with serving() as echo:
            monkeypatch.setattr(echo.listener, "_schedule_turn", lambda: None)
            _, writer = await connect(echo)
            writer.write(encode_command(request(8)) * 50)
            await eventually(lambda: echo.listener._waiting)
            with pytest.raises(InvariantBroken):
                echo.listener.invariants()
            (waiting,) = echo.listener._waiting
            waiting.close_if_idle(asyncio.get_running_loop().time() + 1)
            assert not echo.gone  # it is not silent: this side does not read
            waiting.cut_off("gone")
            await eventually(lambda: len(echo.gone) == 1)
            assert not echo.listener._waiting

    run(test)


def test_an_owner_that_fails_on_one_peer_closes_it_and_serves_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It fails in a later turn, while the others wait for theirs."""

    async def test() -> None:
        async with serving() as echo:
            received = echo.received

            def receive(connection: PeerConnection, commands: Iterable[Command]) -> None:
                if len(echo.seen) > 15 and connection == echo.connections[0]:
                    raise MemoryError("no more of this")
                received(connection, commands)

            echo.received = receive  # type: ignore[method-assign]
            peers = [await connect(echo) for _ in range(3)]
            for _, writer in peers:
                writer.write(encode_command(request(8)) * 20)
            await eventually(lambda: len(echo.gone) == 1)
            (gone,) = echo.gone
            assert gone == echo.connections[0]
            for each in echo.connections[1:]:
                await eventually(lambda each=each: handled(echo, each) == 20)  # type: ignore[misc]
            echo.listener.invariants()
        assert "requests of a connection cannot be handled" in caplog.text

    run(test)


def handled(echo: Echo, connection: PeerConnection) -> int:
    return sum(count for asked, count in echo.batches if asked == connection.id)


def test_commands_that_an_owner_leaves_are_handed_over_again() -> None:
    """The owner takes one command of those that one read brought, and asks for the others when it
    is done with it; nobody calls it before."""

    async def test() -> None:
        async with serving() as echo:
            received = echo.received

            def receive(connection: PeerConnection, commands: Iterable[Command]) -> bool:
                some = list(itertools.islice(commands, 1))
                received(connection, some)
                calls.append(len(some))
                if some:
                    loop.call_later(0.01, echo.listener.wake, connection.id)
                return bool(some)

            loop, calls = asyncio.get_running_loop(), list[int]()
            echo.received = receive  # type: ignore[assignment, method-assign]
            _, writer = await connect(echo)
            frames = [encode_command(request(RequestCode.SEND_MESSAGE, {"n": n})) for n in "123"]
            writer.write(b"".join(frames))
            await eventually(lambda: len(echo.seen) == 3)
            assert [command.ext_fields["n"] for command in echo.seen] == ["1", "2", "3"]
            assert calls in ([1, 1, 1], [1, 1, 1, 0])

    run(test)
