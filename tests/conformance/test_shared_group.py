"""A Java and a Python consumer of one group share its queues while each comes and goes ten times.

No loss: every message that was sent is handled. No overlap: whenever the group has settled, the
queues of both are disjoint and complete; and while it settles

- in order, of one ordering key nothing runs in two places at once, and a message comes twice only
  if it was the last that the Java member handled of a queue before it lost that: Apache's client
  takes no answer of a handler for a queue that it has lost meanwhile
  (`ConsumeMessageOrderlyService.processConsumeResult`, `isDropped`), and then commits without it;
- without order, the same of the messages that its twenty threads had in hand, or handled meanwhile
  (`ConsumeMessageConcurrentlyService`; it commits up to the lowest unfinished message).

What the Python member handled never comes again: it lets handlers end, and commits.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import pytest
from bench.java_programs import missing_tools
from tests.client.cluster import QUICK, eventually
from tests.conformance.clusters import Cluster
from tests.conformance.java_member import Delivery, JavaMember, now_ms

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.asyncio_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.subscription import CONSUMED, Outcome, Subscription
from reliable_mq.message import Message, ReceivedMessage

CLUSTERS = ("bundled", "apache", "mixed, our name server")
ROUNDS = 10
KEYS = 40
QUEUES_IN_ALL = 8
IN_HAND = {"ordered": 1, "concurrent": 20}
"""Messages of a queue that Apache's client handles at a time."""
SETTLE_SECONDS_MAX = 60.0
PAUSE_SECONDS = 0.005

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.processes,
    pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools())),
]


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
    async with asyncio.timeout(SETTLE_SECONDS_MAX):
        while not await is_settled():
            await asyncio.sleep(0.05)


def repeated(deliveries: Iterable[Delivery]) -> set[Delivery]:
    """Return the deliveries whose message came again after them."""
    of_body: dict[str, list[Delivery]] = defaultdict(list)
    for each in sorted(deliveries, key=lambda each: each.begun):
        of_body[each.body].append(each)
    return {each for all_of in of_body.values() for each in all_of[:-1]}


def lost_in_hand(deliveries: Iterable[Delivery], in_hand: int) -> set[Delivery]:
    """Return the last messages that each member handled of a queue before it lost that."""
    of_queue: dict[str, list[Delivery]] = defaultdict(list)
    for each in sorted(deliveries, key=lambda each: each.begun):
        of_queue[each.queue].append(each)
    tenures = (
        list(tenure)
        for all_of in of_queue.values()
        for _, tenure in itertools.groupby(all_of, key=lambda each: each.member)
    )
    return {each for tenure in tenures for each in tenure[-in_hand:]}


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
    assert {each for each in again if each.member == "python"} == set()
    assert again <= lost_in_hand(got(), IN_HAND[mode])
    if ordered:
        check_order(got())
