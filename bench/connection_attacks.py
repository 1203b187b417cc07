"""What a broker endures of strangers: memory, open files and p99 of an honest client, before, while
and after somebody attacks its ports. The broker demands TLS, or is plain.

    python -m bench.connection_attacks [--attacks trickle frames …] [--count 10000] [--seconds 10]
                                       [--flush SYNC_FLUSH] [--tls] [--set name=value …]

Attacker, broker and honest client share the processors, so the p99 has their share in it, too: the
attack `burn` shows how large it is. The attacker has the lowest class of priority. The name server
is in the broker's process. `docs/explanation/security.md` states the bounds.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import socket
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench import attack_requests, attackers, raw_results
from bench.attackers import Attack, Target, of_names, of_requests
from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_cost import BODY, TOPIC, encrypted
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import TLS
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import Message
from reliable_mq.wire.frame import FrameReader

READY_SECONDS = 90
REST_SECONDS = 2.0  # after an attack


class Kind(NamedTuple):
    """One attack: who does it, by how many connections, and how much more memory it may take."""

    run: Attack
    connections: int
    more_mib: int


class Figures(NamedTuple):
    """What is seen of the broker and of the honest client.

    The memory is the peak. `loop_p99_ms`: how long the broker's loop ran during a send, by its
    processor time. That is what a send waits for if nobody else uses the machine.
    """

    resident_mib: float
    files: int
    p50_ms: float
    p99_ms: float
    loop_p99_ms: float
    sends: int


ATTACKS: dict[str, Kind] = {
    "burn": Kind(attackers.burn, 1, 16),
    "trickle": Kind(attackers.trickle, 10_000, 256 + 64),
    "frames": Kind(attackers.frames, 10_000, 256 + 64),
    "handshakes": Kind(attackers.handshakes, 10_000, 64),
    "plain": Kind(attackers.plain, 10_000, 64),
    "readers": Kind(attackers.readers, 2_000, 256 + 64),
    "sends": Kind(of_requests(attack_requests.sends), 1, 64),
    "sends of 64": Kind(of_requests(attack_requests.sends), 64, 256),
    "commits": Kind(of_requests(attack_requests.commits), 1, 64),
    "offsets": Kind(of_requests(attack_requests.offsets), 1, 64),
    "offsets of 64": Kind(of_requests(attack_requests.offsets), 64, 256),
    "keys": Kind(of_requests(attack_requests.keys), 4, 256 + 64),
    "times": Kind(of_requests(attack_requests.times), 4, 64),
    "tables": Kind(of_requests(attack_requests.tables), 4, 128),
    "filters": Kind(of_requests(attack_requests.filters), 4, 64),
    "members": Kind(attackers.members, 4, 128),
    "large pulls": Kind(of_requests(attack_requests.large_pulls), 4, 128),
    "dear": Kind(of_requests(attack_requests.dear), 16, 256 + 64),
    "packed bodies": Kind(of_requests(attack_requests.packed_bodies), 4, 128),
    "bombs": Kind(of_names(attack_requests.bombs, of_name_server=True), 64, 128),
    "registrations": Kind(
        of_names(attack_requests.registrations, of_name_server=True), 64, 64 + 256
    ),
    "routes": Kind(of_names(attack_requests.routes, of_name_server=True), 4, 64),
    "new topics": Kind(of_names(attack_requests.sends_to_new), 4, 1_024),
    "creations": Kind(of_names(attack_requests.creations), 4, 1_024),
    "lists": Kind(of_names(attack_requests.lists), 4, 1_024),
}
"""The last ones fill tables that stay full, so they come last."""


def _status_mib(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) / 1024


async def honest(broker: ReliableMQBroker, client: AsyncClient, seconds: float) -> Figures:
    """Send one message after another for so many seconds, and look at the broker at their end."""
    (pid,) = broker.pids
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
    took, ran = [], []
    loop_times = Path(f"/proc/{pid}/schedstat")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ran_before, began = int(loop_times.read_text().split()[0]), time.perf_counter()
        with contextlib.suppress(ReliableMQError):  # it counts as long as it took
            await client.send(Message(topic=TOPIC, body=BODY))
        took.append((time.perf_counter() - began) * 1000)
        ran.append((int(loop_times.read_text().split()[0]) - ran_before) / 1e6)
        await asyncio.sleep(0.002)
    took.sort()
    ran.sort()
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    p99, loop_p99 = (each[len(took) * 99 // 100] for each in (took, ran))
    memory = _status_mib(pid, "VmHWM")
    return Figures(memory, files, took[len(took) // 2], p99, loop_p99, len(took))


def ask(address: tuple[str, int], frame: bytes, tls: ssl.SSLContext | None) -> None:
    """Send a request and wait for its reply."""
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(socket.create_connection(address))
        if tls is not None:
            peer = stack.enter_context(tls.wrap_socket(peer, server_hostname=address[0]))
        peer.sendall(frame)
        reader = FrameReader()
        while not reader.feed(peer.recv(1 << 16)):
            pass


async def measured(
    broker: ReliableMQBroker,
    tls: TLS | None,
    names: list[str],
    count: int | None,
    seconds: float,
) -> list[dict[str, Any]]:
    """Attack in all these ways, one after another."""
    settings = ClientSettings(tls=tls, request_timeout_seconds=10.0)
    host, _, port = broker.address.rpartition(":")
    target = Target(host, int(port), int(broker.name_server_address.rpartition(":")[2]))
    context = ssl.create_default_context(cafile=str(tls.ca)) if tls is not None else None
    rounds = []
    async with AsyncClient(broker.name_server_address, settings=settings) as client:
        await client.create_topic(TOPIC, 8)
        for each in attack_requests.prepared_tables():
            await asyncio.to_thread(ask, (target.host, target.port), each, context)
        await attack_requests.prepare(client)
        await honest(broker, client, 1.0)
        for name in names:
            kind = ATTACKS[name]
            before = _tell(name, "before", await honest(broker, client, seconds))
            ready, stop = multiprocessing.Event(), multiprocessing.Event()
            words = (target, count or kind.connections, ready, stop)
            attacker = multiprocessing.Process(target=kind.run, args=words, daemon=True)
            attacker.start()
            await asyncio.to_thread(ready.wait, READY_SECONDS)
            meanwhile = _tell(name, "while", await honest(broker, client, seconds))
            stop.set()
            await asyncio.to_thread(attacker.join)
            await asyncio.sleep(REST_SECONDS)
            after = _tell(name, "after", await honest(broker, client, seconds))
            rounds.append(
                {
                    "what": name,
                    "broker": broker.flush_disk_type,
                    "connections": count or kind.connections,
                    "more_mib_max": kind.more_mib,
                    "before": before._asdict(),
                    "while": meanwhile._asdict(),
                    "after": after._asdict(),
                }
            )
    return rounds


def _tell(attack: str, when: str, seen: Figures) -> Figures:
    print(
        f"{attack:14} {when:6} {seen.resident_mib:7.1f} MiB {seen.files:6} files"
        f" p50 {seen.p50_ms:6.2f} ms  p99 {seen.p99_ms:6.2f} ms, of the loop"
        f" {seen.loop_p99_ms:6.2f} ms {seen.sends:6} sends",
        flush=True,
    )
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description="Attacks on a broker's ports.")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--count", type=int, help="connections; default: by attack")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--flush", choices=["SYNC_FLUSH", "ASYNC_FLUSH"], default="ASYNC_FLUSH")
    parser.add_argument("--tls", action="store_true", help="the broker demands TLS")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--keep", action="store_true", help="write the raw results")
    options = parser.parse_args()
    attackers.raise_files()
    with tempfile.TemporaryDirectory(prefix="reliable-mq-attacks-") as folder:
        directory = Path(folder)
        settings, tls = encrypted(directory) if options.tls else ({}, None)
        settings = {**settings, "enablePropertyFilter": "true"}
        settings |= dict(each.split("=", 1) for each in options.set)
        with ReliableMQBroker(directory / "broker", options.flush, settings=settings) as broker:
            found = measured(broker, tls, options.attacks, options.count, options.seconds)
            rounds = uvloop.run(found)
            if options.keep:
                described = {"seconds": options.seconds, "tls": options.tls, "set": options.set}
                print(raw_results.write(raw_results.of_now("attacks", described, rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
