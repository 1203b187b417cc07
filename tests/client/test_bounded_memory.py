"""A client over an endless backlog: what it holds is bounded, and every queue gets its share."""

import asyncio

from tests.client.script import group_of
from tests.client.scripted_consumer import Held, ScriptedClient, found, play, world_with
from tests.waiting import eventually

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.flow import Call
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import RequestTimeout
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.record import Record


def test_memory_stays_bounded_and_shared_out_while_a_handler_hangs_over_an_endless_backlog() -> (
    None
):
    queues, limit = 40, 400_000
    settings = ClientSettings(rebalance_retry_seconds=0.001, held_total_bytes_max=limit)

    def endless(call: Call) -> Command:
        header = PullMessageHeader.decode(call.command.ext_fields)
        if header.topic != "t":
            raise RequestTimeout("nothing new")
        count = max(1, min(32, (header.max_msg_bytes or 0) // 1100))
        begin = header.queue_offset
        records = [Record("t", bytes(1000), queue_offset=begin + at) for at in range(count)]
        return found(begin + count, *records)(call)

    async def scene() -> None:
        world = world_with(endless)
        subscription = Subscription(group="g", topics={"t": "*"}, ordered=False, concurrency=2)
        group = group_of(world, subscription, queues={"a": queues}, settings=settings)
        handler = Held()

        def read() -> list[AssignedQueue]:
            return [each for each in group.assigned if each.queue.topic == "t"]

        consumer = AsyncPushConsumer(ScriptedClient(world), group, handler)
        await consumer.start()
        pulls = -1
        while len(consumer.queues) < queues or pulls < len(
            world.calls_of(RequestCode.PULL_MESSAGE)
        ):
            pulls = len(world.calls_of(RequestCode.PULL_MESSAGE))
            for _ in range(200):
                await asyncio.sleep(0)
        assert all(each.unfinished for each in read()), "nobody starves"
        assert sum(each.cost for each in read()) < 2 * limit
        group.invariants()
        handler.may_end.set()
        begun = sum(each.next_offset for each in read())
        await eventually(lambda: sum(each.next_offset for each in read()) >= begun + 1000)
        await consumer.close()

    play(scene())
