"""nats-py in the rounds of `client_rivals`: publishing to JetStream, and consuming from it.

Runs in the rivals' environment: python -m bench.rival_nats URL [--loop asyncio|uvloop]
"""

import argparse
import asyncio
import itertools
from typing import Any

import nats
import uvloop

from bench.rival_rounds import BODY, Figures, Meter, in_lanes, serve_on_loop

FETCH = 500
"""Messages asked for at a time by the pull consumer."""
SUBJECT = "bench"


class Nats:
    """One connection, and the verbs of a round."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._jetstream = connection.jetstream()
        self._numbers = itertools.count(1)

    async def prepare(self) -> Figures:
        """Make the stream that messages are sent to."""
        await self._jetstream.add_stream(name=SUBJECT, subjects=[SUBJECT])
        return {}

    async def _publish(self) -> object:
        return await self._jetstream.publish(SUBJECT, BODY)

    async def one(self, seconds: float) -> Figures:
        """Publish one message at a time."""
        return await in_lanes(1, seconds, self._publish)

    async def many(self, lanes: int, seconds: float) -> Figures:
        """Publish from so many tasks at once."""
        return await in_lanes(lanes, seconds, self._publish)

    async def _backlog(self, count: int) -> str:
        subject = f"backlog-{next(self._numbers)}"
        await self._jetstream.add_stream(name=subject, subjects=[subject])
        left = iter(range(count))

        async def lane() -> None:
            for _ in left:
                await self._jetstream.publish(subject, BODY)

        await asyncio.gather(*(lane() for _ in range(64)))
        return subject

    async def fetch(self, backlog: int) -> Figures:
        """Read a new backlog by a pull consumer, and acknowledge each message."""
        subject, count = await self._backlog(backlog), 0
        subscription = await self._jetstream.pull_subscribe(subject, durable="reader")
        meter = Meter()
        while count < backlog:
            for message in await subscription.fetch(min(FETCH, backlog - count), timeout=10):
                await message.ack()
                count += 1
        await self._connection.flush()
        figures = meter.figures(count)
        await self._jetstream.delete_stream(subject)
        return figures

    async def push(self, backlog: int) -> Figures:
        """Read a new backlog by a push consumer, and acknowledge each message."""
        subject, count, ended = await self._backlog(backlog), 0, asyncio.Event()

        async def handle(message: Any) -> None:
            nonlocal count
            await message.ack()
            count += 1
            if count == backlog:
                ended.set()

        meter = Meter()
        await self._jetstream.subscribe(subject, durable="reader", cb=handle, manual_ack=True)
        await ended.wait()
        await self._connection.flush()
        figures = meter.figures(count)
        await self._jetstream.delete_stream(subject)
        return figures


async def run(url: str) -> None:
    connection = await nats.connect(url)
    client = Nats(connection)
    verbs = (client.prepare, client.one, client.many, client.fetch, client.push)
    await serve_on_loop({verb.__name__: verb for verb in verbs})
    await connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="uvloop")
    options = parser.parse_args()
    (uvloop.run if options.loop == "uvloop" else asyncio.run)(run(options.url))
