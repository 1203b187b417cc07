"""Queues that move while something is under way: given back, lost, had again."""

import asyncio
from typing import Any, TypeVar

import msgspec
import pytest
from tests.client.script import World, fails, group_of, in_turn, says
from tests.client.scripted_consumer import (
    QUICK,
    Held,
    ScriptedClient,
    consumed,
    ext,
    found,
    grant_all,
    members,
    play,
    world_with,
)
from tests.client.test_assignment import LOCK, started, world_and_group
from tests.waiting import eventually

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.assignment import give_all_back, keep_ready, rebalance
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.offsets import commit
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.flow import Call, Flow, Step
from reliable_mq.errors import ConnectionLost, RequestTimeout
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record

T = TypeVar("T")


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
    assert not world.calls_of(RequestCode.UPDATE_CONSUMER_OFFSET)


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
        handler = Held()
        consumer = AsyncPushConsumer(ScriptedClient(world), group, handler)
        await consumer.start()
        await handler.running.wait()
        world.answers[RequestCode.QUERY_CONSUMER_OFFSET] = says(ext={"offset": "2"})
        consumer.broker_lost({"a"})

        def asked() -> set[int]:
            return {
                int(call.command.ext_fields["queueOffset"])
                for call in world.calls_of(RequestCode.PULL_MESSAGE)
                if call.command.ext_fields["topic"] == "t"
            }

        await eventually(lambda: 2 in asked(), asked)
        handler.may_end.set()
        await consumer.close()

    play(scene())


class LocksLate(ScriptedClient):
    """Runs flows over a scripted world in which a lock request waits for its answer."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.locks_at_once = asyncio.Event()
        self.locks_at_once.set()
        self.asked = asyncio.Event()

    async def run(self, flow: Flow[T]) -> T:
        answer: Any = None
        try:
            while True:
                step = flow.send(answer)
                await asyncio.sleep(0)
                if isinstance(step, Call) and step.command.code == LOCK:
                    self.asked.set()
                    await self.locks_at_once.wait()
                answer = self.world.play(_of_one(step))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()


def _of_one(step: Step) -> Flow[Any]:
    return (yield step)


def ordered_consumer(
    client: ScriptedClient, made: type[AsyncPushConsumer] = AsyncPushConsumer
) -> AsyncPushConsumer:
    client.world.answers |= {
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: members("client-a"),
        LOCK: grant_all,
        RequestCode.UNLOCK_BATCH_MQ: says(),
        RequestCode.QUERY_CONSUMER_OFFSET: says(ext={"offset": "0"}),
        RequestCode.UPDATE_CONSUMER_OFFSET: says(),
        RequestCode.PULL_MESSAGE: says(ResponseCode.PULL_NOT_FOUND, ext(0)),
    }
    settings = msgspec.structs.replace(QUICK, lock_renew_seconds=0.001)
    subscription = Subscription(group="g", topics={"t": "*"})
    group = group_of(client.world, subscription, queues={"a": 1}, settings=settings)
    return made(client, group, consumed)


def locks_and_unlocks(world: World) -> list[int]:
    codes = (call.command.code for call in world.calls)
    return [code for code in codes if code in (LOCK, RequestCode.UNLOCK_BATCH_MQ)]


@pytest.mark.parametrize("end", ["the member leaves", "the queue moves"])
def test_no_lock_is_given_back_while_a_request_for_it_is_under_way(end: str) -> None:
    """Apache's broker may handle the request last: then nobody has the queue for a minute."""

    async def scene() -> None:
        world = World()
        client = LocksLate(world)
        consumer = ordered_consumer(client)
        await consumer.start()
        await eventually(lambda: len(consumer.queues) == 2)  # its retry topic's is one
        client.asked.clear()
        client.locks_at_once.clear()
        await client.asked.wait()
        renewed = len(locks_and_unlocks(world))
        if end == "the queue moves":
            world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("a", "client-a")
            consumer.rebalance_soon()
            await eventually(lambda: not consumer.group.assigned_of("t"))
        closing = asyncio.create_task(consumer.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(locks_and_unlocks(world)) == renewed
        client.locks_at_once.set()
        await closing
        assert locks_and_unlocks(world)[renewed:][-1] == RequestCode.UNLOCK_BATCH_MQ

    play(scene())


def test_a_lock_whose_connection_was_lost_is_given_back_over_another_one() -> None:
    world, group = started()
    world.answers[RequestCode.UNLOCK_BATCH_MQ] = in_turn(fails(ConnectionLost("gone")), says())
    world.play(give_all_back(group))
    assert len(world.calls_of(RequestCode.UNLOCK_BATCH_MQ)) == 2


def test_a_queue_whose_reading_was_ended_by_a_bug_is_read_again_and_the_bug_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was read no more, without a word, for as long as this member had it."""
    bugs = [ZeroDivisionError("a bug")]

    class Buggy(AsyncPushConsumer):
        def may_pull(self, assigned: AssignedQueue) -> bool:
            if assigned.queue.topic == "t" and bugs:
                raise bugs.pop()
            return super().may_pull(assigned)

    async def scene() -> None:
        world = World()
        consumer = ordered_consumer(ScriptedClient(world), Buggy)
        await consumer.start()
        await eventually(
            lambda: any(
                call.command.ext_fields["topic"] == "t"
                for call in world.calls_of(RequestCode.PULL_MESSAGE)
            )
        )
        await consumer.close()

    play(scene())
    assert "a bug" in caplog.text
