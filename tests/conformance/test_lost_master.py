"""One of two masters goes away under load: sends go on, nothing acknowledged is lost.

Killed means SIGKILL and a start on the same store; stalled means SIGSTOP: the connections stay and
nobody answers. Sends go on within 3 seconds where no more processes want a processor than there
are; on a busier machine within as many times 3 seconds as there are processes for each processor.
The time-out of the sends holds that: none may fail.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from tests.client.cluster import QUICK, Seen, play
from tests.conformance.clusters import Cluster, Ours
from tests.waiting import allowed_seconds, eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import Message, MessageQueue

CLUSTERS = ("two bundled", "two apache", "mixed, our name server")
LANES = 8
GO_ON_SECONDS = 3.0
SOME = 40
"""Messages of every lane that make a load, before and after."""
SETTINGS = msgspec.structs.replace(
    QUICK, route_refresh_seconds=1.0, rebalance_seconds=1.0, retries=20
)
"""Many retries: a broker that gets no processor for a while says that it is busy."""

pytestmark = pytest.mark.processes


class Load:
    """Senders that never stop, each with one message at a time, and what came of them."""

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self.acknowledged: set[int] = set()
        self.of_lane: Counter[int] = Counter()
        self.of_broker: Counter[str] = Counter()
        self.failures: list[ReliableMQError] = []
        self._client = client
        self._topic = topic
        self._lanes = [asyncio.create_task(self._send(lane)) for lane in range(LANES)]

    async def _send(self, lane: int) -> None:
        number = lane
        while True:
            message = Message(topic=self._topic, body=b"%d" % number)
            try:
                result = await self._client.send(message, timeout=allowed_seconds(GO_ON_SECONDS))
            except ReliableMQError as failure:
                self.failures.append(failure)
            else:
                self.acknowledged.add(number)
                self.of_lane[lane] += 1
                self.of_broker[result.queue.broker_name] += 1
            number += LANES
            await asyncio.sleep(0.001)

    def grown_by(self, count: int) -> Callable[[], bool]:
        """Return a condition: every lane has so many acknowledged more than now."""
        goals = {lane: self.of_lane[lane] + count for lane in range(LANES)}
        return lambda: all(self.of_lane[lane] >= goal for lane, goal in goals.items())

    async def stop(self) -> None:
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)


async def is_stored(client: AsyncClient, queue: MessageQueue, body: bytes) -> bool:
    """Try to send to just this queue."""
    try:
        await client.send(Message(topic=queue.topic, body=body), queue=queue)
    except ReliableMQError:
        return False
    return True


def victims(cluster: Cluster) -> list[str]:
    """One broker of each kind."""
    return list(
        {isinstance(master, Ours): name for name, master in cluster.masters.items()}.values()
    )


@pytest.mark.parametrize("end", ["killed", "stalled"])
def test_sends_go_on_and_nothing_acknowledged_is_lost(
    cluster: Cluster, topic: str, group: str, end: str
) -> None:
    async def scene(victim: str, topic: str, group: str) -> None:
        process = cluster.masters[victim].process
        names = cluster.name_server_address
        async with (
            AsyncClient(names, settings=SETTINGS) as client,
            AsyncClient(names, settings=SETTINGS) as reader,
        ):
            await client.create_topic(topic, 2)
            seen = Seen()
            await reader.consume(Subscription(group=group, topics={topic: "*"}), seen)
            load = Load(client, topic)
            await eventually(load.grown_by(SOME))
            assert len(load.of_broker) == 2, "both take their part"
            (process.kill if end == "killed" else process.pause)()
            try:
                await eventually(load.grown_by(SOME))
            finally:
                back = cluster.start if end == "killed" else lambda _: process.resume()
                await asyncio.to_thread(back, victim)
            late = MessageQueue(topic, victim, 0)
            await eventually(lambda: is_stored(client, late, b"-1"))
            await load.stop()
            expected = load.acknowledged | {-1}
            await eventually(lambda: expected <= {int(body) for body in seen.bodies})
        assert load.failures == []

    for name in victims(cluster):
        play(scene(name, f"{topic}-{name}", f"{group}-{name}"))
