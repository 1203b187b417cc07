"""A Java and a Python consumer of one group share its queues while each comes and goes ten times.

No loss: every message that was sent is handled. No overlap: whenever the group has settled, the
queues of both are disjoint and complete; and while it settles

- in order, of one ordering key nothing runs in two places at once; what the Python member handled
  never comes again, and what the Java member handled only if it was the last of a queue before it
  lost that: Apache's client takes no answer of a handler for a queue that it has lost meanwhile
  (`ConsumeMessageOrderlyService.processConsumeResult`, `isDropped`), and then commits without it;
- without order no lock keeps the new owner of a queue from reading its offset before the old one
  has committed: a message comes twice only if it was handled within a commit period (Apache's 5 s)
  before the other member handled it.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import pytest
from tests.client.cluster import QUICK
from tests.conformance.clusters import Cluster
from tests.conformance.java_member import Delivery, JavaMember, now_ms
from tests.waiting import eventually
from tests.with_java import INTEROP

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

CLUSTERS = ("bundled", "apache", "mixed, our name server")
ROUNDS = 10
KEYS = 40
QUEUES_IN_ALL = 8
REPEATED_MS_MAX = 10_000
"""Between two deliveries of a message: the commit period, and time to settle."""
SETTLE_SECONDS_MAX = 180.0
"""Apache's broker keeps queue locks for 60 s that nobody gave back, and for 120 s a member that has
left while a heartbeat of its client was under way: Apache's client sends one a second after it has
started, and does not wait for its answer before it unregisters."""
PAUSE_SECONDS = 0.005

pytestmark = INTEROP


class PythonMember:
    """Our consumer, which joins and leaves with a client of its own each time."""

    def __init__(self, names: str, subscription: Subscription, topic: str) -> None:
        self.deliveries: list[Delivery] = []
        self._names, self._topic = names, topic
        self._subscription = subscription
        self._client: AsyncClient
        self._consumer: AsyncPushConsumer | None = None

    async def _handle(self, messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        (message,) = messages
        begun = now_ms()
        await asyncio.sleep(0.002)
        place = f"{message.queue.broker_name}:{message.queue.queue_id}"
        body = message.body.decode()
        self.deliveries.append(
            Delivery("python", place, message.queue_offset, body, begun, now_ms())
        )
        return [CONSUMED]

    async def join(self) -> None:
        self._client = AsyncClient(self._names, settings=QUICK)
        await self._client.start()
        self._consumer = await self._client.consume(self._subscription, self._handle)

    async def leave(self) -> None:
        self._consumer = None
        await self._client.close()

    def queues(self) -> set[str]:
        found = self._consumer.queues if self._consumer else ()
        return {f"{q.broker_name}:{q.queue_id}" for q in found if q.topic == self._topic}


class Sender:
    """Sends numbered messages, each with an ordering key, until it is stopped."""

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self.bodies: list[str] = []
        self._client, self._topic = client, topic
        self._ends = False
        self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        for number in itertools.count():
            if self._ends:
                return
            key = str(number % KEYS)
            body = f"{key}/{number}"
            message = Message(topic=self._topic, body=body.encode(), ordering_key=key)
            await self._client.send(message)
            self.bodies.append(body)
            await asyncio.sleep(PAUSE_SECONDS)

    async def stop(self) -> None:
        self._ends = True
        await self._task


async def settled(is_settled: Callable[[], Awaitable[bool]]) -> None:
    """Wait for the members to agree. Apache's client looks again after as much as 20 s."""
    await eventually(is_settled, seconds=SETTLE_SECONDS_MAX)


def repeated(deliveries: Iterable[Delivery]) -> list[tuple[Delivery, Delivery]]:
    """Return what came again, and each time the delivery before it."""
    of_body: dict[str, list[Delivery]] = defaultdict(list)
    for each in sorted(deliveries, key=lambda each: each.begun):
        of_body[each.body].append(each)
    return [pair for all_of in of_body.values() for pair in itertools.pairwise(all_of)]


def last_of_tenures(deliveries: Iterable[Delivery]) -> set[Delivery]:
    """Return what each member handled last of a queue before it lost that."""
    of_queue: dict[str, list[Delivery]] = defaultdict(list)
    for each in sorted(deliveries, key=lambda each: each.begun):
        of_queue[each.queue].append(each)
    return {
        list(tenure)[-1]
        for all_of in of_queue.values()
        for _, tenure in itertools.groupby(all_of, key=lambda each: each.member)
    }


def check_order(deliveries: Sequence[Delivery]) -> None:
    """Check that the messages of each key ran one at a time, in order, apart from repetitions."""
    of_key: dict[str, list[Delivery]] = defaultdict(list)
    for each in sorted(deliveries, key=lambda each: (each.begun, each.ended)):
        of_key[each.body.partition("/")[0]].append(each)
    for key, all_of in of_key.items():
        for before, after in itertools.pairwise(all_of):
            assert before.ended <= after.begun, f"key {key}: {before} and {after} at once"
        firsts = list(dict.fromkeys(int(each.body.partition("/")[2]) for each in all_of))
        assert firsts == sorted(firsts), f"key {key} out of order"


@pytest.mark.parametrize("mode", ["ordered", "concurrent"])
def test_two_members_of_two_kinds_share_through_ten_joins_and_leaves(
    cluster: Cluster, topic: str, group: str, mode: str, tmp_path: Path
) -> None:
    names = cluster.name_server_address
    ordered = mode == "ordered"
    subscription = Subscription(group=group, topics={topic: "*"}, ordered=ordered)
    deliveries: list[Delivery] = []
    python = PythonMember(names, subscription, topic)

    def got() -> list[Delivery]:
        return [*deliveries, *python.deliveries]

    async def scene(java: JavaMember) -> None:
        async with AsyncClient(names, settings=QUICK) as client:
            await client.create_topic(topic, QUEUES_IN_ALL // len(cluster.masters))
            route = await client.topic_route(topic)
            every = {f"{queue.broker_name}:{queue.queue_id}" for queue in route.readable}
            assert len(every) == QUEUES_IN_ALL

            async def shares() -> tuple[set[str], set[str]]:
                return await asyncio.to_thread(java.queues), python.queues()

            async def both_share() -> bool:
                theirs, mine = await shares()
                return mine | theirs == every and len(mine) == len(theirs) == len(every) // 2

            async def java_has_all() -> bool:
                return (await shares())[0] == every

            async def python_has_all() -> bool:
                return python.queues() == every

            async def java_does(word: str) -> None:
                await asyncio.to_thread(java.ask, word)

            await python.join()
            sender = Sender(client, topic)
            await java_does("join")
            await settled(both_share)
            for _ in range(ROUNDS):
                await java_does("leave")
                await settled(python_has_all)
                await java_does("join")
                await settled(both_share)
                await python.leave()
                await settled(java_has_all)
                await python.join()
                await settled(both_share)
            await sender.stop()
            sent = set(sender.bodies)
            await eventually(lambda: {each.body for each in got()} == sent)
            await python.leave()
            await java_does("leave")

    with JavaMember(tmp_path, (names, group, topic, mode), deliveries) as java:
        asyncio.run(scene(java))
    again = repeated(got())
    if ordered:
        check_order(got())
        assert {before for before, _ in again if before.member == "python"} == set()
        assert {before for before, _ in again} <= last_of_tenures(got())
    assert [pair for pair in again if pair[1].begun - pair[0].ended > REPEATED_MS_MAX] == []
