"""New connections: few in a turn of the loop; who connects too often is held, and then reset."""

import asyncio
import errno
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import cast

import pytest
from tests.runtime.echo_server import Echo, connect, is_served, run, serving
from tests.waiting import eventually

from reliable_mq.runtime import acceptor as acceptor_module
from reliable_mq.runtime.acceptor import HELD_MAX, Acceptor
from reliable_mq.runtime.connection_limits import ConnectionLimits
from reliable_mq.runtime.host_names import bound_sockets


class Noted(asyncio.Protocol):
    """Notes its transport."""

    made: list[asyncio.BaseTransport]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.append(transport)


@asynccontextmanager
async def accepting(
    *, is_hasty: bool
) -> AsyncIterator[tuple[Acceptor, tuple[str, int], list[asyncio.BaseTransport]]]:
    """Give a listening acceptor, its address, and the transports that it has made."""
    (bound,) = await bound_sockets("127.0.0.1", 0)
    made: list[asyncio.BaseTransport] = []

    def make() -> asyncio.Protocol:
        protocol = Noted()
        protocol.made = made
        return protocol

    acceptor = Acceptor(bound, lambda _ip: is_hasty, make)
    address = bound.getsockname()
    try:
        yield acceptor, address, made
    finally:
        await acceptor.close()
        for transport in made:
            transport.close()


@contextmanager
def connected(address: tuple[str, int], count: int) -> Iterator[list[socket.socket]]:
    """Connect so many times; the system does it, before anybody accepts."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(count)]


def is_reset(peer: socket.socket) -> bool:
    """Whether the other side has reset a connection; it tells so once."""
    peer.setblocking(False)
    try:
        peer.recv(1)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return False


def test_a_turn_of_the_loop_sets_up_few_connections_and_all_come_in() -> None:
    async def test() -> None:
        async with accepting(is_hasty=False) as (acceptor, address, made):
            acceptor.start()
            with connected(address, 50):
                acceptor._accept()
                assert len(acceptor._opening) == 2
                assert not acceptor._is_reading, "it rests, so that others get their turn"
                await eventually(lambda: len(made) == 50)

    run(test)


def test_of_refused_connections_so_many_are_held_and_the_oldest_are_reset() -> None:
    async def test() -> None:
        async with accepting(is_hasty=True) as (acceptor, address, made):
            acceptor.start()
            with connected(address, HELD_MAX + 10) as peers:
                await eventually(lambda: len(acceptor._held) == HELD_MAX)
                for peer in peers[:10]:
                    await eventually(partial(is_reset, peer))
                assert not is_reset(peers[10])
            assert made == []

    run(test)


def test_a_held_connection_is_reset_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "HELD_SECONDS", 0.05)

    async def test() -> None:
        async with accepting(is_hasty=True) as (acceptor, address, _):
            acceptor.start()
            for _ in range(3):  # and again, when none was held meanwhile
                with connected(address, 2) as peers:
                    await eventually(lambda: len(acceptor._held) == 2)
                    await eventually(lambda: not acceptor._held)
                    assert is_reset(peers[1])

    run(test)


def test_closing_ends_held_connections_and_those_that_nobody_accepted() -> None:
    async def test() -> None:
        async with accepting(is_hasty=True) as (acceptor, address, _):
            acceptor.start()
            with connected(address, 1) as (held,):
                await eventually(lambda: len(acceptor._held) == 1)
                await acceptor.close()
                await acceptor.close()
                assert is_reset(held)
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(address)

    run(test)


class Exhausted:
    """A listening socket of a process that may open no more files, for its first try."""

    def __init__(self, true: socket.socket, code: int) -> None:
        self._true = true
        self._code = code
        self.fileno = true.fileno
        self.listen = true.listen
        self.close = true.close

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self._code:
            code, self._code = self._code, 0
            raise OSError(code, "cannot accept")
        return self._true.accept()


@pytest.mark.parametrize(
    ("code", "lines"), [(errno.EMFILE, 1), (errno.ENFILE, 1), (errno.ENOBUFS, 1), (errno.EPROTO, 0)]
)
def test_an_error_of_accepting_ends_nothing(
    code: int, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor_module, "_EXHAUSTED_SECONDS", 0.01)

    async def test() -> None:
        async with accepting(is_hasty=False) as (acceptor, address, made):
            acceptor._socket = cast("socket.socket", Exhausted(acceptor._socket, code))
            acceptor.start()
            with connected(address, 3):
                await eventually(lambda: len(made) == 3)

    caplog.set_level(logging.INFO, "reliable_mq.runtime")
    run(test)
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events == ["connections_not_accepted"] * lines


async def is_let_in(echo: Echo, local: str) -> bool:
    """Whether a new connection from this local address is served before a held one would end."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", echo.listener.port, local_addr=(local, 0)
    )
    try:
        return await is_served(reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    finally:
        writer.close()


def test_who_connects_too_often_is_refused_with_one_kind_of_line_and_the_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving(limits=ConnectionLimits(new_of_address=1)) as echo:
            old = await connect(echo)
            tries = [asyncio.create_task(is_let_in(echo, "127.0.0.1")) for _ in range(30)]
            assert await is_let_in(echo, "127.0.0.2")
            assert await is_served(*old), "who is connected stays so"
            assert sum(await asyncio.gather(*tries)) < 20
            assert echo.listener.refused["rate"] >= 10
            await eventually(lambda: len(echo.gone) >= 2)
            began = time.monotonic()
            while not await is_let_in(echo, "127.0.0.1"):
                assert time.monotonic() < began + 30

    caplog.set_level(logging.INFO, "reliable_mq.runtime")
    run(test)
    assert {getattr(record, "event", "") for record in caplog.records} == {"connection_too_many"}
    assert "maxNewConnectionsPerSecondOfAddress" in caplog.records[0].getMessage()


def test_no_connection_comes_in_once_the_listener_reads_no_more() -> None:
    async def test() -> None:
        async with serving() as echo:
            served = await connect(echo)
            assert await is_served(*served)
            echo.listener.stop_reading()
            with pytest.raises(ConnectionRefusedError):
                await connect(echo)
            await echo.listener.close()
            assert await served[0].read() == b""

    run(test)
