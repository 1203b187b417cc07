"""What a broker endures of strangers: memory, open files and p99 of an honest client, before, while
and after somebody attacks its port. The broker demands TLS, or is plain.

    python -m bench.connection_attacks [--attacks trickle frames handshakes plain] [--count 10000]
                                       [--seconds 10] [--tls]

Attacker, broker and honest client share the processors, so the p99 has their share in it, too.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import resource
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_cost import BODY, TOPIC, encrypted
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import TLS
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import Message

Attack = Callable[[str, int, int, Event, Event], None]
AT_ONCE = 64  # handshakes that one attacker has under way


class Figures(NamedTuple):
    """What is seen of the broker and of the honest client."""

    resident_mib: float
    files: int
    p50_ms: float
    p99_ms: float


def _raise_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _opened(
    host: str, port: int, count: int
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    found = []
    for number in range(count):
        with contextlib.suppress(OSError):
            # A local address for every 1,000: so many of one may come at once.
            local = (f"127.0.{1 + number // 1_000}.1", 0)
            found.append(await asyncio.open_connection(host, port, local_addr=local))
    return found


def trickle(host: str, port: int, count: int, ready: Event, stop: Event) -> None:
    """Keep so many connections open, and send a byte of a frame on each, once a second."""

    async def attack() -> None:
        streams = await _opened(host, port, count)
        ready.set()
        frame = struct.pack(">i", 1_000_000) + bytes(1_000_000)
        for at in range(len(frame)):
            began = time.monotonic()
            for _, writer in streams:
                if not writer.is_closing():
                    writer.write(frame[at : at + 1])
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
            if stop.is_set():
                return

    _raise_files()
    uvloop.run(attack())


def frames(host: str, port: int, count: int, ready: Event, stop: Event) -> None:
    """Announce a frame of 16 MiB on each connection, and send nothing of it."""

    async def attack() -> None:
        streams = await _opened(host, port, count)
        for _, writer in streams:
            writer.write(struct.pack(">i", 16 * 1024 * 1024 - 8))
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.1)

    _raise_files()
    uvloop.run(attack())


def handshakes(host: str, port: int, count: int, ready: Event, stop: Event) -> None:
    """Begin handshakes as fast as one process can, and leave each when the server has answered."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="a")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()

    async def lane() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(hello)
                await reader.read(1)
                writer.transport.abort()

    async def attack() -> None:
        ready.set()
        await asyncio.gather(*(lane() for _ in range(min(count, AT_ONCE))))

    uvloop.run(attack())


def plain(host: str, port: int, count: int, ready: Event, stop: Event) -> None:
    """Connect and send something that is no frame, as fast as one process can."""

    async def lane() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await reader.read(1)
                writer.transport.abort()

    async def attack() -> None:
        ready.set()
        await asyncio.gather(*(lane() for _ in range(min(count, AT_ONCE))))

    uvloop.run(attack())


ATTACKS: dict[str, Attack] = {
    "trickle": trickle,
    "frames": frames,
    "handshakes": handshakes,
    "plain": plain,
}


def _resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


async def honest(broker: ReliableMQBroker, client: AsyncClient, seconds: float) -> Figures:
    """Send one message after another for so many seconds, and look at the broker at their end."""
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        await client.send(Message(topic=TOPIC, body=BODY))
        took.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.002)
    took.sort()
    (pid,) = broker.pids
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Figures(_resident_mib(pid), files, took[len(took) // 2], took[len(took) * 99 // 100])


async def measured(
    broker: ReliableMQBroker, tls: TLS | None, names: list[str], count: int, seconds: float
) -> None:
    settings = ClientSettings(tls=tls, request_timeout_seconds=30.0)
    host, _, port = broker.address.rpartition(":")
    async with AsyncClient(broker.name_server_address, settings=settings) as client:
        await client.create_topic(TOPIC, 8)
        await honest(broker, client, 1.0)
        for name in names:
            _tell(name, "before", await honest(broker, client, seconds))
            ready, stop = multiprocessing.Event(), multiprocessing.Event()
            words = (host, int(port), count, ready, stop)
            attacker = multiprocessing.Process(target=ATTACKS[name], args=words)
            attacker.start()
            await asyncio.to_thread(ready.wait, 60)
            _tell(name, "while", await honest(broker, client, seconds))
            stop.set()
            await asyncio.to_thread(attacker.join)
            await asyncio.sleep(1.0)
            _tell(name, "after", await honest(broker, client, seconds))


def _tell(attack: str, when: str, seen: Figures) -> None:
    print(
        f"{attack:10} {when:6} {seen.resident_mib:7.1f} MiB {seen.files:6} files"
        f" p50 {seen.p50_ms:6.2f} ms  p99 {seen.p99_ms:6.2f} ms",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Attacks on a broker's port.")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--count", type=int, default=10_000, help="connections")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--tls", action="store_true", help="the broker demands TLS")
    options = parser.parse_args()
    _raise_files()
    with tempfile.TemporaryDirectory(prefix="reliable-mq-attacks-") as folder:
        directory = Path(folder)
        settings, tls = encrypted(directory) if options.tls else ({}, None)
        with ReliableMQBroker(directory / "broker", "ASYNC_FLUSH", settings=settings) as broker:
            uvloop.run(measured(broker, tls, options.attacks, options.count, options.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
