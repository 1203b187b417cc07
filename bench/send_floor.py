"""Processor time of the broker process for one message, and the floor below which none can come.

A generator in C (`send_floor.c`, compiled here) sends messages of 1 KiB as Apache's Java client
does. So the machine serves the broker, and what is measured hardly depends on what else runs.
The floor is a server on uvloop that reads the same bytes, writes what each read brought with one
`pwritev` (with SYNC_FLUSH also an `fdatasync`), and answers as many requests. It parses nothing.
With `--signed`, a second broker with access control gets the same messages signed, in turn.

One send in flight lets a processor of a machine without other work fall asleep after each message.
The broker then begins with cold caches, and takes twice as long. `--awake` keeps all processors
awake, by processes that run only while nobody else wants to. So do other users of the machine.

    python -m bench.send_floor [--messages 60000] [--rounds 3] [--ways "ASYNC 64"] [--format json]
                               [--signed] [--without-floor]
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.access_cost import ON, SHOP, create_topic, make_user
from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_cost import processor_seconds
from reliable_mq.client.thread_client import Client
from reliable_mq.wire.command import Command, encode_command, reply
from reliable_mq.wire.frame import ROCKETMQ

BODY_SIZE = 1024
QUEUES = 8
TOPIC = "bench"
_AHEAD = 512 * 1024  # bytes of zeros before the end of the floor's file, as before the log's


class Way(NamedTuple):
    """A way of sending, and the microseconds that the broker may take for a message."""

    name: str
    flush: str
    connections: int
    in_flight: int
    batch: int
    bar: float


WAYS = (
    Way("ASYNC 1", "ASYNC_FLUSH", 1, 1, 1, 28),
    Way("ASYNC 16", "ASYNC_FLUSH", 1, 16, 1, 8),
    Way("ASYNC 64", "ASYNC_FLUSH", 1, 64, 1, 5.5),
    Way("ASYNC 16x1", "ASYNC_FLUSH", 16, 1, 1, 18),
    Way("SYNC 16", "SYNC_FLUSH", 1, 16, 1, 13),
    Way("SYNC 64", "SYNC_FLUSH", 1, 64, 1, 9),
    Way("ASYNC batches", "ASYNC_FLUSH", 1, 4, 32, 2.5),
    Way("SYNC batches", "SYNC_FLUSH", 1, 4, 32, 5),
)


class _Floor(asyncio.Protocol):
    """Writes what comes, and answers each request. All frames have the size of the first one."""

    def __init__(self, descriptor: int, answer: bytes, *, is_sync: bool) -> None:
        self._descriptor, self._answer, self._is_sync = descriptor, answer, is_sync
        self._size = self._came = self._at = self._zeros_to = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._size:
            self._size = int.from_bytes(data[:4], "big") + 4
        self._came += len(data)
        count, self._came = divmod(self._came, self._size)
        if not count:
            return
        if self._is_sync and self._at + len(data) > self._zeros_to:
            os.pwrite(self._descriptor, bytes(_AHEAD), self._at)
            self._zeros_to = self._at + _AHEAD
        os.pwritev(self._descriptor, (data,), self._at)
        self._at = (self._at + len(data)) % (256 * 1024 * 1024)
        self._zeros_to = max(self._zeros_to, self._at)
        if self._is_sync:
            os.fdatasync(self._descriptor)
        self._transport.write(self._answer * count)  # type: ignore[attr-defined]


def _serve_floor(told: Connection, path: str, answer: bytes, *, is_sync: bool) -> None:
    """Run the floor until its process is ended; tell its port."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Floor(descriptor, answer, is_sync=is_sync), "127.0.0.1", 0
        )
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


def _stay_awake() -> None:
    """Use what nobody else wants of a processor, until this process is ended."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass


def _keep_awake(stack: ExitStack) -> None:
    """Let no processor of the machine fall asleep until `stack` ends."""
    for _ in range(os.cpu_count() or 1):
        process = get_context("spawn").Process(target=_stay_awake, daemon=True)
        process.start()
        stack.callback(process.terminate)


class Generator:
    """The program that sends, compiled into a folder."""

    def __init__(self, directory: Path, messages: int, form: str) -> None:
        self.program = directory / "send_floor"
        self._messages, self._form = messages, form
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["gcc", "-O2", "-o", self.program, source], check=True)

    def cost(
        self, pid: int, port: int, way: Way, user: tuple[str, ...] = ()
    ) -> tuple[float, float]:
        """Send one round; return microseconds of the process for a message, and messages/s.

        Args:
            pid: of the server.
            port: of the server.
            way: of sending.
            user: name and secret of who signs. Default: nobody.
        """
        before = processor_seconds(pid)
        numbers = (way.connections, way.in_flight, self._messages, BODY_SIZE, way.batch)
        words = [
            str(port),
            TOPIC,
            str(QUEUES),
            *map(str, numbers),
            self._form,
            *(("0", *user) if user else ()),
        ]
        run = subprocess.run([self.program, *words], check=False, capture_output=True, text=True)
        if run.returncode:  # the broker has refused a send: the disk is too slow for it
            raise SystemExit(f"{way.name}: {run.stderr}")
        count, seconds = run.stdout.split()
        spent = processor_seconds(pid) - before
        return spent / int(count) * 1e6, int(count) / float(seconds)


class Measured(NamedTuple):
    """A server that is measured, and who signs what it gets."""

    pid: int
    port: int
    user: tuple[str, ...] = ()


def _measure(
    generator: Generator, servers: list[Measured], way: Way, rounds: int
) -> list[tuple[str, float]]:
    """Return what a message costs each server, as a text and in microseconds; in turns."""
    found: dict[Measured, list[tuple[float, float]]] = {each: [] for each in servers}
    for _ in range(rounds + 1):
        for each in servers:
            found[each].append(generator.cost(each.pid, each.port, way, each.user))
    shown = []
    for _warm, *seen in found.values():
        cost = statistics.median(us for us, _rate in seen)
        rate = statistics.median(rate for _us, rate in seen)
        shown.append((f"{cost:7.2f} us {rate:8,.0f} msg/s", cost))
    return shown


def _with_access_control(directory: Path, flush: str, stack: ExitStack) -> Measured:
    """Start a broker with access control, and give it the topic and a user."""
    broker = stack.enter_context(ReliableMQBroker(directory, flush, settings=ON))
    make_user(broker.address)
    create_topic(broker.address, TOPIC, QUEUES)
    (pid,) = broker.pids
    return Measured(pid, int(broker.address.rpartition(":")[2]), SHOP)


def main() -> int:
    parser = argparse.ArgumentParser(description="Processor time of the broker for a message.")
    parser.add_argument("--messages", type=int, default=60_000, help="in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--awake", action="store_true", help="keep the processors awake; Linux")
    parser.add_argument("--ways", nargs="+", help="only those whose name begins so")
    parser.add_argument("--format", choices=("json", "rocketmq"), default="json")
    parser.add_argument("--without-floor", action="store_true")
    parser.add_argument("--signed", action="store_true", help="with access control, too")
    options = parser.parse_args()
    if shutil.which("gcc") is None:
        print("there is no gcc for the generator", file=sys.stderr)
        return 2
    ways = [w for w in WAYS if not options.ways or w.name.startswith(tuple(options.ways))]
    to = Command(code=0, opaque=100_000)
    to.serialize_type = ROCKETMQ if options.format == "rocketmq" else 0
    answer = encode_command(reply(to, ext={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="send-floor-")))
        if options.awake:
            _keep_awake(stack)
        generator = Generator(directory, options.messages, options.format)
        for flush in dict.fromkeys(way.flush for way in ways):
            broker = ReliableMQBroker(directory / flush, flush)
            with broker, Client(broker.name_server_address) as client, ExitStack() as beside:
                client.create_topic(TOPIC, QUEUES)
                ours, theirs = get_context("spawn").Pipe()
                floor = get_context("spawn").Process(
                    target=_serve_floor,
                    args=(theirs, str(directory / f"floor-{flush}"), answer),
                    kwargs={"is_sync": flush == "SYNC_FLUSH"},
                    daemon=True,
                )
                floor.start()
                floor_port, (pid,) = ours.recv(), broker.pids
                servers = [Measured(pid, int(broker.address.rpartition(":")[2]))]
                if options.signed:
                    servers.append(_with_access_control(directory / "signed", flush, beside))
                for way in (each for each in ways if each.flush == flush):
                    (shown, cost), *more = _measure(generator, servers, way, options.rounds)
                    print(f"{way.name:14} {shown} ({cost / way.bar:.2f} of the bar)", end="")
                    for signed, its_cost in more:
                        print(f"   signed {signed} ({its_cost / cost:.2f} of unsigned)", end="")
                    if not options.without_floor and floor.pid:
                        at = [Measured(floor.pid, floor_port)]
                        print(
                            f"   floor {_measure(generator, at, way, options.rounds)[0][0]}", end=""
                        )
                    print(flush=True)
                floor.terminate()
                floor.join()
            for each in (flush, "signed"):
                shutil.rmtree(directory / each, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
