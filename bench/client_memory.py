"""Memory of our client when the broker stalls, when a handler hangs, and before a huge backlog.

Each scene is a client in a process of its own, whose resident memory is looked at ten times a
second: what it grew by beyond what it had when it was ready is the figure.

- stalled: the broker is stopped (SIGSTOP) while a thread goes on to send as fast as it may;
- hung: a handler of a thread never comes back, while the topic holds far more than the limits;
- backlog: ten million messages of 100 bytes wait, and are consumed for as long as it takes.

    python -m bench.client_memory                 # ten minutes, most of it to make the backlog
    python -m bench.client_memory --backlog 100000 --seconds 5
"""

import argparse
import asyncio
import contextlib
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from bench import raw_results
from bench.child_process import ChildError
from bench.quiet import resident_mib
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import figures_table
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import Unavailable
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

BAR_MIB = 200
"""The limits let 64 MiB of bodies wait to be sent, and 8 queues pull 8,000 messages of 8 KiB;
the rest is what Python makes of them."""
BODY, LARGE_BODY = b"x" * 100, b"x" * 8192
QUEUES = 8
BATCH, BATCH_BYTES, LANES = 1000, 2 * 1024 * 1024, 8
HUNG_MESSAGES = 50_000
LOOK_SECONDS = 0.1
SCENE_SECONDS_MAX = 3600.0


def send_and_send(name_servers: str) -> None:
    """Send from one thread for ever, and wait for no answer: only the client holds this up."""
    with Client(name_servers) as client:
        client.create_topic("stalled", QUEUES)
        client.send(Message(topic="stalled", body=LARGE_BODY))
        print("ready", flush=True)
        while True:
            with contextlib.suppress(Unavailable):
                client.send_async(Message(topic="stalled", body=LARGE_BODY))


async def hang(client: AsyncClient) -> None:
    """Consume with a handler that never ends."""

    async def handle(_: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        await asyncio.Event().wait()
        return []

    print("ready", flush=True)
    await client.consume(Subscription(group="hung", topics={"hung": "*"}), handle)
    await asyncio.Event().wait()


async def read_all(client: AsyncClient, count: int) -> None:
    """Consume so many messages, and say so."""
    seen, ended = 0, asyncio.Event()

    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        nonlocal seen
        seen += len(messages)
        if seen >= count:
            ended.set()
        return [CONSUMED] * len(messages)

    print("ready", flush=True)
    wanted = Subscription(group="readers", topics={"backlog": "*"}, ordered=False)
    await client.consume(wanted, handle)
    await ended.wait()


async def play(scene: str, name_servers: str, count: int) -> None:
    """Be the consumer of one scene."""
    async with AsyncClient(name_servers) as client:
        await (hang(client) if scene == "hung" else read_all(client, count))


async def fill(name_servers: str, topic: str, body: bytes, count: int) -> None:
    """Give a topic so many messages, in batches."""
    async with AsyncClient(name_servers) as client:
        await client.create_topic(topic, QUEUES)
        route = await client.topic_route(topic)
        queues = sorted(route.writable)
        size = min(BATCH, BATCH_BYTES // len(body))
        turns = itertools.cycle(queues)

        async def lane(share: int) -> None:
            for left in range(share, 0, -size):
                batch = [Message(topic=topic, body=body)] * min(size, left)
                await client.send_batch(batch, queue=next(turns), timeout=30.0)

        shares = [count // LANES + (number < count % LANES) for number in range(LANES)]
        await asyncio.gather(*map(lane, shares))


class Watched:
    """The client of a scene, and its memory. A context manager."""

    def __init__(self, scene: str, name_servers: str, count: int) -> None:
        command = [sys.executable, "-m", "bench.client_memory", "--scene", scene]
        command += ["--namesrv", name_servers, "--backlog", str(count)]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._child.stdout is not None
        if self._child.stdout.readline().strip() != "ready":
            raise ChildError(f"{command}: exit code {self._child.wait()}")
        self.at_first = resident_mib(self._child.pid)
        self.most = self.at_first

    def look_for(self, seconds: float) -> bool:
        """Look at the memory for so long; return whether the client has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._child.poll() is not None:
                return True
            with contextlib.suppress(OSError):
                self.most = max(self.most, resident_mib(self._child.pid))
            time.sleep(LOOK_SECONDS)
        return False

    @property
    def grown(self) -> float:
        """What it had more than at first, when it had most, in MiB."""
        return self.most - self.at_first

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()


def stalled(broker: ReliableMQBroker, seconds: float) -> float:
    """Stop the broker while the client sends; return what the client grew by."""
    with Watched("stalled", broker.name_server_address, 0) as client:
        client.look_for(2.0)
        broker.process.pause()
        try:
            client.look_for(seconds)
        finally:
            broker.process.resume()
        return client.grown


def hung(broker: ReliableMQBroker, seconds: float) -> float:
    """Let a handler hang before a topic that is far larger than the limits."""
    uvloop.run(fill(broker.name_server_address, "hung", LARGE_BODY, HUNG_MESSAGES))
    with Watched("hung", broker.name_server_address, 0) as client:
        client.look_for(seconds)
        return client.grown


def backlog(broker: ReliableMQBroker, count: int) -> tuple[float, float]:
    """Consume a backlog; return what the client grew by, and how many it consumed a second."""
    uvloop.run(fill(broker.name_server_address, "backlog", BODY, count))
    begun = time.perf_counter()
    with Watched("backlog", broker.name_server_address, count) as client:
        if not client.look_for(SCENE_SECONDS_MAX):
            raise ChildError("the backlog was not consumed in time")
        return client.grown, count / (time.perf_counter() - begun)


def figure(what: str, value: float, unit: str, bar: str) -> dict[str, Any]:
    return {"what": what, "value": round(value, 1), "unit": unit, "bar": bar}


def measure(directory: Path, count: int, seconds: float) -> list[dict[str, Any]]:
    """Play the scenes one after another, each at a broker of its own."""
    bar = f"<= {BAR_MIB}"
    found = []
    with ReliableMQBroker(directory / "stalled") as broker:
        grown = stalled(broker, seconds)
        found.append(figure("broker stalled", grown, "MiB more", bar))
    with ReliableMQBroker(directory / "hung") as broker:
        grown = hung(broker, seconds)
        found.append(figure("hung handler", grown, "MiB more", bar))
    with ReliableMQBroker(directory / "backlog", "ASYNC_FLUSH") as broker:
        grown, speed = backlog(broker, count)
        found.append(figure(f"backlog of {count:,}", grown, "MiB more", bar))
        found.append(figure("consumed from it", speed, "msg/s", ""))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory of our client under pressure.")
    parser.add_argument("--backlog", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of stalling and of hanging")
    parser.add_argument("--scene", help=argparse.SUPPRESS)
    parser.add_argument("--namesrv", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scene:
        if options.scene == "stalled":
            send_and_send(options.namesrv)
        uvloop.run(play(options.scene, options.namesrv, options.backlog))
        return 0
    with tempfile.TemporaryDirectory(prefix="reliable-mq-memory-") as directory:
        found = measure(Path(directory), options.backlog, options.seconds)
    settings = {"backlog": options.backlog, "seconds": options.seconds}
    results = raw_results.of_now("client-memory", settings, found)
    print(f"raw results: {raw_results.write(results)}\n{figures_table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
