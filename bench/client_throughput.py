"""Messages a second that our own client sends and consumes, against our own broker.

Client and broker share the machine; the processor time is the client's alone, and says what a
quiet machine could do.

    python -m bench.client_throughput [--messages 20000] [--flush SYNC_FLUSH]
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import uvloop

from bench.reliable_mq_broker import ReliableMQBroker
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

BODY = b"x" * 1024
QUEUES = 8
KEYS = 500
RELAY_BATCH = 1000  # what an outbox relay hands over at once


def messages(topic: str, count: int, *, keyed: bool = False) -> list[Message]:
    """Return messages to send, with ordering keys or without."""
    return [
        Message(topic=topic, body=BODY, ordering_key=f"key-{at % KEYS}" if keyed else "")
        for at in range(count)
    ]


class Clock:
    """Prints one line for each thing it measures."""

    def start(self) -> None:
        """Begin to measure."""
        self._wall = time.perf_counter()
        self._processor = time.process_time()

    def stop(self, what: str, count: int) -> None:
        """Print how many a second there were, and the processor time of each."""
        wall = time.perf_counter() - self._wall
        each = (time.process_time() - self._processor) / count * 1e6
        print(f"{what:40} {count / wall:10,.0f} msg/s {each:8.1f} us of processor each", flush=True)


async def send_singly(client: AsyncClient, tasks: int, count: int, clock: Clock) -> None:
    """Measure `send`, so many tasks at a time."""

    async def one() -> None:
        for message in messages("bench", count // tasks):
            await client.send(message)

    clock.start()
    await asyncio.gather(*(one() for _ in range(tasks)))
    clock.stop(f"send, {tasks} task{'s' * (tasks > 1)}", count // tasks * tasks)


async def send_many(client: AsyncClient, topic: str, count: int, clock: Clock) -> None:
    """Measure `send_many` with ordering keys, in batches as a relay has them."""
    batch = messages(topic, count, keyed=True)
    clock.start()
    for at in range(0, count, RELAY_BATCH):
        for outcome in await client.send_many(batch[at : at + RELAY_BATCH]):
            if isinstance(outcome, Exception):
                raise outcome
    clock.stop(f"send_many, {RELAY_BATCH} at a time", count)


async def consume(client: AsyncClient, topic: str, count: int, ordered: bool, clock: Clock) -> None:
    """Measure a push consumer over a backlog, with a handler that does nothing."""
    seen = 0
    finished = asyncio.Event()

    async def handle(received: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        nonlocal seen
        seen += len(received)
        if seen >= count:
            finished.set()
        return [CONSUMED] * len(received)

    name = "ordered" if ordered else "concurrent"
    clock.start()
    subscription = Subscription(group=f"bench-{name}", topics={topic: "*"}, ordered=ordered)
    consumer = await client.consume(subscription, handle)
    await finished.wait()
    clock.stop(f"consume, {name}", count)
    await consumer.close()


def send_from_a_thread(name_servers: str, count: int, clock: Clock) -> None:
    """Measure the synchronous face: one message at a time, and as futures."""
    with Client(name_servers) as client:
        client.create_topic("bench-thread", QUEUES)
        batch = messages("bench-thread", count)
        clock.start()
        for message in batch:
            client.send(message)
        clock.stop("send, one thread", count)
        clock.start()
        for future in [client.send_async(message) for message in batch]:
            future.result()
        clock.stop("send_async, one thread", count)


async def measure(name_servers: str, count: int, clock: Clock) -> None:
    """Measure everything that runs on one loop."""
    async with AsyncClient(name_servers) as client:
        await client.create_topic("bench", QUEUES)
        await client.create_topic("bench-backlog", QUEUES)
        await client.send_many(messages("bench", RELAY_BATCH))
        steps: list[Callable[[], Awaitable[None]]] = [
            lambda: send_singly(client, 1, count // 10, clock),
            lambda: send_singly(client, 16, count // 2, clock),
            lambda: send_many(client, "bench-backlog", count, clock),
            lambda: consume(client, "bench-backlog", count, True, clock),
            lambda: consume(client, "bench-backlog", count, False, clock),
        ]
        for step in steps:
            await step()


def main() -> int:
    parser = argparse.ArgumentParser(description="Throughput of our own client.")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--flush", choices=["SYNC_FLUSH", "ASYNC_FLUSH"], default="SYNC_FLUSH")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="reliable-mq-client-") as directory,
        ReliableMQBroker(Path(directory), options.flush) as broker,
    ):
        clock = Clock()
        uvloop.run(measure(broker.name_server_address, options.messages, clock))
        send_from_a_thread(broker.name_server_address, options.messages // 10, clock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
