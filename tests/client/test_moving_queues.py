"""Queues that move while something is under way: given back, lost, had again."""

import asyncio
from collections.abc import Sequence

import msgspec
from tests.client.script import group_of, says
from tests.client.scripted_consumer import (
    QUICK,
    ScriptedClient,
    found,
    grant_all,
    play,
    world_with,
)
from tests.client.test_assignment import LOCK, started, world_and_group

from reliable_mq.client.consuming.assignment import keep_ready, rebalance
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.offsets import commit
from reliable_mq.client.consuming.subscription import CONSUMED, Outcome, Subscription
from reliable_mq.client.flow import Call
from reliable_mq.errors import RequestTimeout
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record


def test_a_queue_that_was_given_back_meanwhile_is_not_locked_again() -> None:
    """Its next owner would be kept out for a minute."""
    world, _ = world_and_group()
    group = group_of(world, Subscription(group="g", topics={"t": "*"}), queues={"a": 1, "b": 1})
    world.play(rebalance(group))

    def another_rebalance(call: Call) -> Command:
        group.forget(group.leave(MessageQueue("t", "b", 0)))
        return grant_all(call)

    world.answers[LOCK] = another_rebalance
    world.play(keep_ready(group))
    assert [call.address for call in world.calls_of(LOCK)] == ["a:10911"]


def test_a_queue_that_was_given_back_meanwhile_is_not_committed() -> None:
    world, group = started()
    assigned = next(q for q in group.assigned if q.queue.topic == "t")
    group.leave(assigned.queue)
    group.forget(assigned)
    assert world.play(commit(group, [assigned])) == 0
    assert world.posts == []


def two_messages_of_one_key(call: Call) -> Command:
    """Answer pulls: the queue has messages at 0 and 1, then nothing comes."""
    header = PullMessageHeader.decode(call.command.ext_fields)
    if (header.topic, header.queue_offset) != ("t", 0):
        raise RequestTimeout("nothing new")
    properties = encode_properties({"__SHARDINGKEY": "k"})
    records = [
        Record(topic="t", body=b"x", properties=properties, queue_offset=at) for at in range(2)
    ]
    return found(2, *records)(call)


def test_a_queue_that_was_full_is_pulled_again_when_another_owner_has_finished_what_it_held() -> (
    None
):
    """As after a minute in which this process stood still; nothing that ends here makes room."""

    async def scene() -> None:
        world = world_with(two_messages_of_one_key)
        settings = msgspec.structs.replace(QUICK, held_count_max=2)
        subscription = Subscription(group="g", topics={"t": "*"})
        group = group_of(world, subscription, queues={"a": 1}, settings=settings)
        running = asyncio.Event()
        may_end = asyncio.Event()

        async def handle(_: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            running.set()
            await may_end.wait()
            return [CONSUMED]

        consumer = AsyncPushConsumer(ScriptedClient(world), group, handle)
        await consumer.start()
        await running.wait()
        world.answers[RequestCode.QUERY_CONSUMER_OFFSET] = says(ext={"offset": "2"})
        consumer.broker_lost({"a"})
        asked: set[int] = set()
        while 2 not in asked:
            await asyncio.sleep(0)
            asked = {
                int(call.command.ext_fields["queueOffset"])
                for call in world.calls_of(RequestCode.PULL_MESSAGE)
                if call.command.ext_fields["topic"] == "t"
            }
        may_end.set()
        await consumer.close()

    play(scene())
