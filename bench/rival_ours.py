"""Our own client in the rounds of `client_rivals`: both faces, sending and consuming.

python -m bench.rival_ours NAME_SERVERS
"""

import asyncio
import itertools
import sys
import time
from collections.abc import Sequence

import uvloop

from bench.rival_rounds import BODY, Figures, Meter, in_lanes, serve_on_loop
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

QUEUES = 8
AT_ONCE = 1000
TOPIC = "bench"


class Ours:
    """One asynchronous client, and the verbs of a round."""

    def __init__(self, client: AsyncClient, name_servers: str) -> None:
        self._client = client
        self._name_servers = name_servers
        self._numbers = itertools.count(1)

    async def prepare(self) -> Figures:
        """Make the topics that are sent to."""
        await self._client.create_topic(TOPIC, QUEUES)
        return {}

    async def _send(self) -> object:
        return await self._client.send(Message(topic=TOPIC, body=BODY))

    async def one(self, seconds: float) -> Figures:
        """Send one message at a time."""
        return await in_lanes(1, seconds, self._send)

    async def many(self, lanes: int, seconds: float) -> Figures:
        """Send from so many tasks at once."""
        return await in_lanes(lanes, seconds, self._send)

    async def thread(self, seconds: float) -> Figures:
        """Send one message at a time by the synchronous face, from one thread."""
        return await asyncio.to_thread(self._in_thread, seconds)

    def _in_thread(self, seconds: float) -> Figures:
        with Client(self._name_servers) as client:
            client.send(Message(topic=TOPIC, body=BODY))
            meter, count = Meter(), 0
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                client.send(Message(topic=TOPIC, body=BODY))
                count += 1
            return meter.figures(count)

    async def fill(self, topic: str, count: int) -> Figures:
        """Give `topic` so many messages, for whoever reads it."""
        await self._client.create_topic(topic, QUEUES)
        meter = Meter()
        for at in range(0, count, AT_ONCE):
            some = [Message(topic=topic, body=BODY) for _ in range(min(AT_ONCE, count - at))]
            for outcome in await self._client.send_many(some):
                if isinstance(outcome, Exception):
                    raise outcome
        return meter.figures(count)

    async def push(self, backlog: int) -> Figures:
        """Read a new backlog with a handler that gets single messages, and commit all."""
        topic = f"backlog-{next(self._numbers)}"
        await self.fill(topic, backlog)
        count, begun, ended = 0, asyncio.Event(), asyncio.Event()

        async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            nonlocal count
            count += len(messages)
            begun.set()
            if count >= backlog:
                ended.set()
            return [CONSUMED] * len(messages)

        wanted = Subscription(group=topic, topics={topic: "*"}, ordered=False)
        consumer = await self._client.consume(wanted, handle)
        await begun.wait()
        meter = Meter()
        await ended.wait()
        await consumer.close()
        return meter.figures(count)


async def run(name_servers: str) -> None:
    async with AsyncClient(name_servers) as client:
        ours = Ours(client, name_servers)
        verbs = (ours.prepare, ours.one, ours.many, ours.thread, ours.fill, ours.push)
        await serve_on_loop({verb.__name__: verb for verb in verbs})


if __name__ == "__main__":
    uvloop.run(run(sys.argv[1]))
