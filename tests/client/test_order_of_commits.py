"""Commits of one consumer reach brokers one after the other, the last one last.

A broker takes requests by many threads: of 4,000 commits that were sent without waiting right
before another one, Apache's stored 237 behind it, and the group was set back.
"""

import asyncio
from typing import Any, TypeVar

import pytest
from tests.client.script import group_of, in_turn
from tests.client.scripted_consumer import (
    ScriptedClient,
    consumed,
    found,
    members,
    play,
    record,
    world_with,
)
from tests.client.scripted_pulls import COMMIT, NOTHING_NEW
from tests.waiting import eventually

from reliable_mq.client.consuming.asyncio_pulled_queues import PulledQueues
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.asyncio_simple_consumer import AsyncSimpleConsumer
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.flow import Flow, Step
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ReliableMQError
from reliable_mq.wire.codes import RequestCode

T = TypeVar("T")
Consumer = AsyncPushConsumer | AsyncSimpleConsumer | PulledQueues

TURNS = 200
OFTEN = ClientSettings(rebalance_retry_seconds=0.001, offset_commit_seconds=0.001)
KINDS = ("push", "simple", "pull")


def _passed_on(step: Step) -> Flow[Any]:
    return (yield step)


class SlowBroker(ScriptedClient):
    """Answers the first commit when it may."""

    def __init__(self) -> None:
        super().__init__(world_with(in_turn(found(1, record(0)), NOTHING_NEW)))
        self.may_answer = asyncio.Event()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow as the client does, step by step."""
        answer: Any = None
        failure: ReliableMQError | None = None
        while True:
            await asyncio.sleep(0)
            try:
                step = flow.throw(failure) if failure is not None else flow.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            await asyncio.sleep(0)
            self.world.seconds = asyncio.get_running_loop().time()
            answer, failure, is_first = None, None, not self.commits
            try:  # no other flow takes a step meanwhile: it is this one that makes a commit
                answer = self.world.play(_passed_on(step))
            except ReliableMQError as error:
                failure = error
            if is_first and self.commits:
                await self.may_answer.wait()

    @property
    def commits(self) -> list[int]:
        calls = self.world.calls_of(COMMIT)
        fields = [call.command.ext_fields for call in calls]
        return [int(each["commitOffset"]) for each in fields if each["topic"] == "t"]


async def started(kind: str, client: SlowBroker) -> Consumer:
    """Return a consumer that has handled a message and whose first commit is under way."""
    wanted = Subscription(group="g", topics={"t": "*"}, ordered=False)
    is_pull = kind == "pull"
    group = group_of(client.world, wanted, queues={"a": 1}, settings=OFTEN, polled=is_pull)
    consumer: Consumer
    if kind == "push":
        consumer = AsyncPushConsumer(client, group, consumed)
        await consumer.start()
    elif kind == "simple":
        consumer = AsyncSimpleConsumer(client, group)
        consumer.start()
        await consumer.ack(*await consumer.receive(timeout=60.0))
    else:
        consumer = PulledQueues(client, group, auto_commit=True)
        consumer.start()
        await consumer.poll(60.0, 10)
        consumer.positions.poll_begins()  # says that it is handled
    await eventually(lambda: client.commits and is_handled(consumer))
    return consumer


def is_handled(consumer: Consumer) -> bool:
    (assigned,) = (each for each in consumer.group.assigned if each.queue.topic == "t")
    return assigned.commit_offset == 1


@pytest.mark.parametrize("kind", KINDS)
def test_closing_commits_behind_a_commit_that_is_not_answered_yet(kind: str) -> None:
    async def scene() -> None:
        client = SlowBroker()
        consumer = await started(kind, client)
        closing = asyncio.create_task(consumer.close())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert len(client.commits) == 1
        client.may_answer.set()
        await closing
        assert client.commits[-1] == 1

    play(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_that_moves_is_committed_behind_a_commit_that_is_not_answered_yet(
    kind: str,
) -> None:
    async def scene() -> None:
        client = SlowBroker()
        consumer = await started(kind, client)
        client.world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("a", "client-a")
        consumer.rebalance_soon()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert len(client.commits) == 1
        client.may_answer.set()
        await eventually(lambda: not consumer.group.all_queues)
        assert client.commits[-1] == 1
        await consumer.close()

    play(scene())
