"""A server on a listener that answers each command with its body, and its clients."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import pytest
import uvloop
from tests.waiting import scene_limit

from reliable_mq.broker_core.requests.handlers import SMALL_ANSWERS
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.runtime import server_connection
from reliable_mq.runtime.connection_limits import ConnectionLimits
from reliable_mq.runtime.listener import IDLE_SECONDS, Listener
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.wire.command import Command, encode_command, reply, request


class Echo:
    """An owner that answers each command with its body, `times` over."""

    small_answers = SMALL_ANSWERS

    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.listener = Listener(self)
        self.seen: list[Command] = []
        self.batches: list[tuple[int, int]] = []  # connection, how many commands at once
        self.connections: list[PeerConnection] = []
        self.gone: list[PeerConnection] = []

    def received(self, connection: PeerConnection, commands: Iterable[Command]) -> None:
        if connection not in self.connections:
            self.connections.append(connection)
        before = len(self.seen)
        for command in commands:
            self.seen.append(command)
            answer = encode_command(reply(command, body=command.body * self.times))
            self.listener.send(connection.id, [answer])
        if len(self.seen) > before:
            self.batches.append((connection.id, len(self.seen) - before))

    def received_known(self, connection: PeerConnection, command: Command) -> None:
        self.received(connection, (command,))

    def disconnected(self, connection: PeerConnection) -> None:
        self.gone.append(connection)


@asynccontextmanager
async def serving(
    host: str = "127.0.0.1",
    *,
    times: int = 1,
    idle_seconds: float = IDLE_SECONDS,
    limits: ConnectionLimits | None = None,
    tls: ServerTls | None = None,
) -> AsyncIterator[Echo]:
    echo = Echo(times)
    echo.listener = Listener(echo, idle_seconds, limits=limits, tls=tls)
    await echo.listener.bind(host, 0)
    await echo.listener.serve()
    try:
        yield echo
    finally:
        await echo.listener.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with scene_limit():
            await test()

    uvloop.run(bounded())


async def connect(
    echo: Echo, host: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, echo.listener.port, limit=1 << 24)


async def is_served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(encode_command(request(7, body=b"still here")))
    length = struct.unpack(">i", await reader.readexactly(4))[0]
    return b"still here" in await reader.readexactly(length)


def ask_when_seen(
    echo: Echo, count: int, asker: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let `asker` send a request of code 9 when a read begins after so many commands."""
    received = echo.received

    def receive(connection: PeerConnection, commands: Iterable[Command]) -> None:
        if len(echo.seen) == count:
            asker.sendall(encode_command(request(9)))
        received(connection, commands)

    monkeypatch.setattr(echo, "received", receive)


def turns_of(echo: Echo, count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of the loop's turn for each command, up to `count`."""
    loop = asyncio.get_running_loop()
    turns: list[int] = []
    received, number = echo.received, 0

    def tick() -> None:
        nonlocal number
        number += 1
        if len(turns) < count:
            loop.call_soon(tick)

    def receive(connection: PeerConnection, commands: Iterable[Command]) -> None:
        before = len(echo.seen)
        received(connection, commands)
        turns.extend([number] * (len(echo.seen) - before))

    monkeypatch.setattr(echo, "received", receive)
    tick()
    return turns


def set_shares(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Change what a turn of the loop may spend, whoever has sent what lately."""
    for name in ("_LONG_TURN", "_SHORT_TURN"):
        monkeypatch.setattr(
            server_connection, name, getattr(server_connection, name)._replace(**seconds)
        )
