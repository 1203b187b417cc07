"""A server that plays a script on each connection, and links to it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from reliable_mq.runtime.link import Link
from reliable_mq.runtime.links import Links
from reliable_mq.wire.command import Command, decode_command, encode_command, reply
from reliable_mq.wire.frame import FrameReader

LONG_SECONDS = 60.0
"""What no call takes, not on a machine that stands still for a while either."""


class Peer:
    """One accepted connection of the scripted server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._frames = FrameReader()
        self.writer = writer

    async def receive(self, count: int) -> list[Command]:
        commands: list[Command] = []
        while len(commands) < count:
            data = await self._reader.read(65536)
            if not data:
                break
            commands += [decode_command(frame) for frame in self._frames.feed(data)]
        return commands

    def send(self, command: Command) -> None:
        self.writer.write(encode_command(command))


Script = Callable[[Peer], Awaitable[None]]


class World:
    """A server that plays `script` on each connection, and links to it."""

    def __init__(self, address: str, links: Links) -> None:
        self.address = address
        self.links = links
        self.requests: list[Command] = []
        self.answer: Callable[[Command], Command] = lambda asked: reply(asked, 3, "not supported")
        self.lost: list[str] = []
        self.greeted: list[str] = []
        # Held here, or a collection of garbage would end a connection that nobody reads from: no
        # loop looks at it.
        self.peers: list[Peer] = []


@asynccontextmanager
async def world(script: Script) -> AsyncIterator[World]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        it.peers.append(peer)
        try:
            await script(peer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)  # it may be 32 MiB elsewhere
    server = await asyncio.start_server(serve, sock=listening)
    host, port = listening.getsockname()

    def on_request(_: str, command: Command) -> Command | None:
        it.requests.append(command)
        return None if command.is_oneway else it.answer(command)

    async def greet(address: str, _: Link) -> None:
        it.greeted.append(address)

    def on_lost(address: str) -> None:
        it.lost.append(address)

    links = Links(connect_timeout=LONG_SECONDS, on_request=on_request, greet=greet, on_lost=on_lost)
    it = World(f"{host}:{port}", links)
    try:
        yield it
    finally:
        await links.close()
        server.close()


def play(script: Script, scene: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with world(script) as it:
            await scene(it)

    asyncio.run(run())


async def silent(peer: Peer) -> None:
    await peer.receive(1_000_000)
