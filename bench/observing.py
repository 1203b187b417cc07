"""What each middleware costs: processor time of our client for a message that is sent or handled.

Client and broker share the machine, so only the processor time of this process is told, which is
the client's alone: the least of some rounds, in turn, and the difference to none.

    python -m bench.observing [--messages 3000] [--rounds 5]
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from bench.reliable_mq_broker import ReliableMQBroker
from reliable_mq import (
    AsyncClient,
    LoggingMiddleware,
    Message,
    MessageTraceMiddleware,
    Middleware,
    OpenTelemetryMiddleware,
    PrometheusMiddleware,
    ReceivedMessage,
    Subscription,
)
from reliable_mq.client.observing.middleware import Delivery, Sending
from reliable_mq.outcomes import CONSUMED, Outcome

BODY = b"x" * 1024
IN_FLIGHT = 64


class Nothing(Middleware):
    """Overrides the hooks and does nothing in them."""

    def before_send(self, sending: Sending) -> None: ...
    def after_send(self, sending: Sending) -> None: ...
    def before_consume(self, delivery: Delivery) -> None: ...
    def after_consume(self, delivery: Delivery) -> None: ...


def logs() -> Middleware:
    """Return a middleware that logs to nowhere."""
    logger = logging.getLogger("bench.observing")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.handlers = [logging.NullHandler()]
    return LoggingMiddleware(logger)


KINDS: dict[str, Callable[[], Sequence[Middleware]]] = {
    "none": list,
    "hooks that do nothing": lambda: [Nothing()],
    "LoggingMiddleware": lambda: [logs()],
    "PrometheusMiddleware": lambda: [PrometheusMiddleware(CollectorRegistry())],
    "OpenTelemetryMiddleware": lambda: [OpenTelemetryMiddleware(TracerProvider())],
    "MessageTraceMiddleware": lambda: [MessageTraceMiddleware()],
}


async def measure(address: str, kind: str, number: int, count: int) -> tuple[float, float]:
    """Return the microseconds of processor for sending a message, and for handling one."""
    topic = f"bench-{number}"
    async with AsyncClient(address, middleware=KINDS[kind]()) as client:
        await client.create_topic(topic, 4)
        await asyncio.gather(*(client.send(Message(topic=topic, body=BODY)) for _ in range(100)))

        async def some() -> None:
            for _ in range(count // IN_FLIGHT):
                await client.send(Message(topic=topic, body=BODY))

        begun = time.process_time()
        await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
        sending = time.process_time() - begun

        total, seen, done = count // IN_FLIGHT * IN_FLIGHT + 100, 0, asyncio.Event()

        async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            nonlocal seen
            seen += len(messages)
            if seen >= total:
                done.set()
            return [CONSUMED] * len(messages)

        begun = time.process_time()
        group = Subscription(group=f"bench-{number}", topics={topic: "*"})
        consumer = await client.consume(group, handle)
        await done.wait()
        handling = time.process_time() - begun
        await consumer.close()
    return sending / (total - 100) * 1e6, handling / total * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description="What each middleware costs.")
    parser.add_argument("--messages", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    costs: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with (
        tempfile.TemporaryDirectory(prefix="reliable-mq-observing-") as directory,
        ReliableMQBroker(Path(directory), "ASYNC_FLUSH") as broker,
    ):
        for at in range(options.rounds * len(KINDS)):
            kind = list(KINDS)[at % len(KINDS)]
            address = broker.name_server_address
            costs[kind].append(uvloop.run(measure(address, kind, at, options.messages)))
    plain = [min(row) for row in zip(*costs["none"], strict=True)]
    print(f"{'':28} {'send':>10} {'more':>7} {'handle':>10} {'more':>7}   us of processor each")
    for kind, rows in costs.items():
        send, handle = (min(row) for row in zip(*rows, strict=True))
        more = f"{send:10.1f} {send - plain[0]:7.1f} {handle:10.1f} {handle - plain[1]:7.1f}"
        print(f"{kind:28} {more}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
