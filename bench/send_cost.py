"""Processor time of one message that is sent, in the client's process and in the broker's.

Both faces, with 1, 16 and 64 messages on their way, one send at a time in each task or thread, to
a bundled broker beside it. What is measured is processor time, so it says the same on a machine
that has other things to do, within a tenth.

    python -m bench.send_cost [--messages 20000] [--rounds 3] [--flush ASYNC_FLUSH] [--profile]
                              [--busy-wait 0] [--tls]
"""

import argparse
import asyncio
import contextlib
import cProfile
import pstats
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.reliable_mq_broker import ReliableMQBroker
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import TLS
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client
from reliable_mq.message import Message

BODY = b"x" * 1024
QUEUES = 8
TOPIC = "bench"
AT_ONCE = (1, 16, 64)


class Cost(NamedTuple):
    """Microseconds of processor of one message, and messages a second."""

    client: float
    broker: float
    per_second: float


class Meter:
    """Measures this process and the broker's from its making."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._broker = processor_seconds(pid)
        self._wall, self._client = time.perf_counter(), time.process_time()

    def cost(self, count: int) -> Cost:
        """Return what each of `count` messages since then took."""
        client, wall = time.process_time() - self._client, time.perf_counter() - self._wall
        broker = processor_seconds(self._pid) - self._broker
        return Cost(client / count * 1e6, broker / count * 1e6, count / wall)


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, to the nanosecond."""
    seconds = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


async def by_tasks(client: AsyncClient, at_once: int, count: int) -> None:
    """Send from so many tasks."""

    async def lane() -> None:
        for _ in range(count // at_once):
            await client.send(Message(topic=TOPIC, body=BODY))

    await asyncio.gather(*(lane() for _ in range(at_once)))


def by_threads(client: Client, at_once: int, count: int) -> None:
    """Send from so many threads."""

    def lane() -> None:
        for _ in range(count // at_once):
            client.send(Message(topic=TOPIC, body=BODY))

    threads = [threading.Thread(target=lane) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_futures(client: Client, at_once: int, count: int) -> None:
    """Begin to send so many from one thread, then wait for all, again and again."""
    for _ in range(count // at_once):
        futures = [client.send_async(Message(topic=TOPIC, body=BODY)) for _ in range(at_once)]
        for future in futures:
            future.result()


class Bench:
    """Measures each way of sending, and prints a line for it.

    Args:
        broker: where to.
        messages: how many in a round.
        rounds: how many rounds; the median of them counts.
        profile: whether to print where the client's time goes.
        settings: of the clients.
    """

    def __init__(
        self,
        broker: ReliableMQBroker,
        messages: int,
        rounds: int,
        *,
        profile: bool,
        settings: ClientSettings,
    ) -> None:
        (self._pid,) = broker.pids
        self._name_servers = broker.name_server_address
        self._messages = messages
        self._rounds = rounds
        self._profile = profile
        self._settings = settings

    async def tasks(self) -> None:
        """Measure the asyncio face."""
        async with AsyncClient(self._name_servers, settings=self._settings) as client:
            await client.create_topic(TOPIC, QUEUES)
            for at_once in AT_ONCE:
                await by_tasks(client, at_once, self._messages // 10)
                costs = []
                for _ in range(self._rounds):
                    meter = Meter(self._pid)
                    await by_tasks(client, at_once, self._messages)
                    costs.append(meter.cost(self._messages))
                self._tell(f"{at_once} task{'s' * (at_once > 1)}", costs)
                if self._profile:
                    profile = cProfile.Profile()
                    profile.enable()
                    await by_tasks(client, at_once, self._messages)
                    profile.disable()
                    pstats.Stats(profile).sort_stats("tottime").print_stats(30)

    def threads(self) -> None:
        """Measure the synchronous face."""
        with Client(self._name_servers, settings=self._settings) as client:
            ways = [
                (f"{at_once} thread{'s' * (at_once > 1)}", by_threads, at_once)
                for at_once in AT_ONCE
            ]
            for name, way, at_once in [*ways, ("64 futures", by_futures, 64)]:
                way(client, at_once, self._messages // 10)
                costs = []
                for _ in range(self._rounds):
                    meter = Meter(self._pid)
                    way(client, at_once, self._messages)
                    costs.append(meter.cost(self._messages))
                self._tell(name, costs)

    def _tell(self, what: str, costs: list[Cost]) -> None:
        client, broker, per_second = (statistics.median(each) for each in zip(*costs, strict=True))
        print(
            f"{what:12} {client:7.1f} us in the client {broker:7.1f} us in the broker"
            f" {per_second:9,.0f} msg/s",
            flush=True,
        )


def encrypted(directory: Path) -> tuple[dict[str, str], TLS]:
    """Return the settings of a broker that demands TLS, and those of its clients."""
    import trustme  # noqa: PLC0415 - its many objects would slow down the garbage collection

    authority, certificate = directory / "ca.pem", directory / "server.pem"
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(authority))
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    settings = {"tls.server.mode": "enforcing", "tls.server.certPath": str(certificate)}
    return settings, TLS(ca=str(authority))


def main() -> int:
    parser = argparse.ArgumentParser(description="Processor time of a send.")
    parser.add_argument("--messages", type=int, default=20_000, help="in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flush", choices=["SYNC_FLUSH", "ASYNC_FLUSH"], default="ASYNC_FLUSH")
    parser.add_argument("--faces", nargs="+", choices=["tasks", "threads"])
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    busy_wait = ClientSettings().busy_wait_seconds
    parser.add_argument("--busy-wait", type=float, default=busy_wait, help="seconds")
    parser.add_argument("--tls", action="store_true", help="encrypt all connections")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="reliable-mq-send-"))
        )
        settings, tls = encrypted(directory) if options.tls else ({}, None)
        broker = ReliableMQBroker(directory / "broker", options.flush, settings=settings)
        stack.enter_context(broker)
        bench = Bench(
            broker,
            options.messages,
            options.rounds,
            profile=options.profile,
            settings=ClientSettings(busy_wait_seconds=options.busy_wait, tls=tls),
        )
        faces = options.faces or ["tasks", "threads"]
        if "tasks" in faces:
            uvloop.run(bench.tasks())
        if "threads" in faces:
            bench.threads()
    return 0


if __name__ == "__main__":
    sys.exit(main())
