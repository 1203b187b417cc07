"""Those who attack a broker's ports. Each runs in a process of its own until it is told to stop.

`connection_attacks` starts them and measures; see there. An attacker stands for other machines, so
it gets processor time only when the broker and the honest client want none (`SCHED_IDLE`).
"""

import asyncio
import contextlib
import itertools
import os
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.synchronize import Event
from typing import NamedTuple, cast

import uvloop

from bench import attack_requests

AT_ONCE = 64  # handshakes that one attacker has under way
PIECE_SIZE = 64 * 1024  # that a flood writes at once
FRAME_SIZE = 1_000_000  # of the frames that trickle in


class Target(NamedTuple):
    """Where the broker and its name server listen."""

    host: str
    port: int
    name_server_port: int


Attack = Callable[[Target, int, Event, Event], None]
"""Receives the target, a count of connections, and events: it is at full force; it shall stop."""


def raise_files() -> None:
    """Let this process open as many files as it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _begin() -> None:
    """Take processor time that nobody else wants only: an attacker elsewhere takes none at all."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    raise_files()


def _local(number: int) -> tuple[str, int]:
    """Return a local address, another one for every 5,000: nobody else has ports for more."""
    return f"127.0.{1 + number // 1_000}.1", 0


async def _opened(
    target: Target, count: int
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    found = []
    for number in range(count):
        with contextlib.suppress(OSError):
            where = (target.host, target.port)
            found.append(await asyncio.open_connection(*where, local_addr=_local(number)))
    return found


def burn(_target: Target, _count: int, ready: Event, stop: Event) -> None:
    """Use a processor and attack nobody: what an attacker costs by being on this machine."""
    _begin()
    ready.set()
    while not stop.is_set():
        sum(range(10_000))


def trickle(target: Target, count: int, ready: Event, stop: Event) -> None:
    """Keep so many connections open, and send a byte of a frame on each, once a second."""

    async def attack() -> None:
        streams = await _opened(target, count)
        ready.set()
        frame = struct.pack(">i", FRAME_SIZE) + bytes(FRAME_SIZE)
        for at in range(len(frame)):
            began = time.monotonic()
            for _, writer in streams:
                if not writer.is_closing():
                    writer.write(frame[at : at + 1])
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
            if stop.is_set():
                return

    _begin()
    uvloop.run(attack())


def frames(target: Target, count: int, ready: Event, stop: Event) -> None:
    """Announce a frame of 16 MiB on each connection, and send nothing of it."""

    async def attack() -> None:
        streams = await _opened(target, count)
        for _, writer in streams:
            writer.write(struct.pack(">i", 16 * 1024 * 1024 - 8))
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.1)

    _begin()
    uvloop.run(attack())


def _hello() -> bytes:
    """Return the first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="a")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def handshakes(target: Target, count: int, ready: Event, stop: Event) -> None:
    """Begin handshakes as fast as one process can, and leave each when the server has answered."""
    _come_and_go(target, count, ready, stop, _hello())


def plain(target: Target, count: int, ready: Event, stop: Event) -> None:
    """Connect and send something that is no frame, as fast as one process can."""
    _come_and_go(target, count, ready, stop, b"GET / HTTP/1.1\r\n\r\n")


def _come_and_go(target: Target, count: int, ready: Event, stop: Event, words: bytes) -> None:
    async def lane() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(target.host, target.port)
                writer.write(words)
                await reader.read(1)
                writer.transport.abort()

    async def attack() -> None:
        ready.set()
        await asyncio.gather(*(lane() for _ in range(min(count, AT_ONCE))))

    _begin()
    uvloop.run(attack())


def readers(target: Target, count: int, ready: Event, stop: Event) -> None:
    """Ask for messages of 4 MiB on each connection, 16 times, and read a byte a second.

    A connection that the broker closes is made again.
    """
    asks = b"".join(attack_requests.large_pulls(16))

    def open_one(number: int) -> socket.socket | None:
        peer = socket.socket()
        try:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            peer.bind(_local(number))
            peer.connect((target.host, target.port))
            peer.setblocking(False)
            peer.send(asks)
        except OSError:
            peer.close()
            return None
        return peer

    _begin()
    peers = dict(enumerate(map(open_one, range(count))))
    ready.set()
    while not stop.is_set():
        end = time.monotonic() + 1.0
        for number, peer in peers.items():
            try:
                is_open = peer is not None and peer.recv(1) != b""
            except BlockingIOError:
                is_open = True
            except OSError:
                is_open = False
            if not is_open:
                if peer is not None:
                    peer.close()
                peers[number] = open_one(number)
            if stop.is_set():
                return
        stop.wait(max(0.0, end - time.monotonic()))


class _Pump(asyncio.Protocol):
    """Writes pieces as fast as the peer takes them, and reads whatever comes."""

    def __init__(self, pieces: Iterator[bytes], on_lost: Callable[[], None]) -> None:
        self._pieces = pieces
        self._on_lost = on_lost
        self._is_paused = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=PIECE_SIZE)
        self._write()

    def _write(self) -> None:
        """Write one piece, and go on in the next turn: answers are read in between."""
        if not self._is_paused and not self._transport.is_closing():
            self._transport.write(next(self._pieces))
            asyncio.get_running_loop().call_soon(self._write)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._is_paused = True
        self._on_lost()


def flood(
    target: Target, port: int, lanes: Iterable[Iterator[bytes]], ready: Event, stop: Event
) -> None:
    """Write the pieces of each lane to a connection of its own, and begin it again if it is lost.

    Args:
        target: whom.
        port: the broker's or the name server's.
        lanes: what each connection sends.
        ready: set when all connections are open.
        stop: ends it.
    """

    async def lane(pieces: Iterator[bytes]) -> None:
        loop = asyncio.get_running_loop()
        lost = asyncio.Event()
        while not stop.is_set():
            lost.clear()
            with contextlib.suppress(OSError):
                await loop.create_connection(lambda: _Pump(pieces, lost.set), target.host, port)
                await lost.wait()
            await asyncio.sleep(0.01)

    async def attack() -> None:
        tasks = [asyncio.create_task(lane(pieces)) for pieces in lanes]
        await asyncio.sleep(0.5)
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    _begin()
    uvloop.run(attack())


def members(target: Target, count: int, ready: Event, stop: Event) -> None:
    """Join a group a thousand times, and ask for its connections on `count` other connections."""
    _begin()
    peers = []
    for number in range(attack_requests.CROWD_SIZE):
        peer = socket.create_connection((target.host, target.port))
        peer.sendall(attack_requests.crowd(number))
        peers.append(peer)
    of_requests(attack_requests.members)(target, count, ready, stop)
    for peer in peers:
        peer.close()


def of_requests(asks: Callable[[], list[bytes]]) -> Attack:
    """Return an attack that sends the same requests to the broker, again and again."""

    def attack(target: Target, count: int, ready: Event, stop: Event) -> None:
        lanes = [itertools.repeat(_piece(asks())) for _ in range(count)]
        flood(target, target.port, lanes, ready, stop)

    return attack


def of_names(
    asks: Callable[[int, int], Iterator[bytes]], *, of_name_server: bool = False
) -> Attack:
    """Return an attack whose requests never repeat: each lane goes through names of its own."""

    def attack(target: Target, count: int, ready: Event, stop: Event) -> None:
        lanes = [_pieces(asks(number, count)) for number in range(count)]
        port = target.name_server_port if of_name_server else target.port
        flood(target, port, lanes, ready, stop)

    return attack


def _piece(asks: list[bytes]) -> bytes:
    """Return whole requests, repeated until they fill a piece."""
    one = b"".join(asks)
    return one * max(1, PIECE_SIZE // len(one))


def _pieces(asks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield requests, joined to pieces."""
    while True:
        piece = bytearray()
        while len(piece) < PIECE_SIZE:
            piece += next(asks)
        yield bytes(piece)
