"""A machine that slept: its loops' clock stood still, the brokers' did not.

`world.asleep` are the seconds that a suspension has lasted; timers know nothing of them.
"""

import asyncio
from collections.abc import Sequence

from tests.client.script import World, group_of, says
from tests.client.scripted_consumer import QUICK, ScriptedClient, grant_all, play, reading
from tests.client.test_assignment import COMMITTED, LOCK, received, started

from reliable_mq.client.consuming.assignment import keep_ready
from reliable_mq.client.consuming.asyncio_simple_consumer import AsyncSimpleConsumer
from reliable_mq.client.consuming.offsets import commit, commit_at_last
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.wire.codes import RequestCode


def test_a_handler_starts_nothing_under_a_lock_that_ran_out_while_the_machine_slept() -> None:
    async def scene() -> None:
        world = World()
        client = ScriptedClient(world)
        handled: list[int] = []

        async def falls_asleep(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            handled.extend(message.queue_offset for message in messages)
            world.asleep = 60.0
            return [CONSUMED] * len(messages)

        consumer, assigned = reading(client, falls_asleep, ordered=True, keys=("k", "k", "k"))
        assigned.lock_until(client.lease_clock() + 30)
        consumer.pool.pump()
        await asyncio.gather(*consumer.pool.tasks)
        consumer.pool.pump()
        assert (handled, consumer.pool.tasks) == ([0], [])

        world.answers |= {LOCK: grant_all, COMMITTED: says(ext={"offset": "2"})}
        await client.run(keep_ready(consumer.group))
        consumer.pool.pump()
        await asyncio.gather(*consumer.pool.tasks)
        assert handled == [0, 2], "another member had the lock meanwhile, and finished 1"
        await consumer.close()

    play(scene())


def test_nothing_is_committed_under_a_lock_that_ran_out_while_the_machine_slept() -> None:
    world, group = started()
    ordered = [assigned for assigned in group.assigned if assigned.needs_lock]
    for assigned in ordered:
        assigned.add_pulled([], 9)
    world.asleep = 30.0
    world.play(commit(group, ordered))
    world.play(commit_at_last(group, ordered))
    assert world.calls == []


def test_a_lock_is_good_for_as_long_after_the_machine_slept_as_without() -> None:
    world, group = started()
    world.asleep = 1000.0
    assert world.play(keep_ready(group))
    assigned = next(q for q in group.assigned if q.needs_lock)
    assigned.add_pulled([received(assigned.queue, at, f"{at}") for at in range(5, 7)], 7)
    world.seconds += 29
    assert len(group.take_ready(world.lease_seconds)) == 1
    world.asleep += 1
    assert group.take_ready(world.lease_seconds) == []


class SharingClient(ScriptedClient):
    """Runs flows over a scripted world, for a simple consumer."""

    hooks = Hooks((), ClientIdentity())

    def reader_closed(self, reader: object) -> None:
        return None


def test_a_lease_that_ran_out_while_the_machine_slept_is_given_again_at_once() -> None:
    async def scene() -> None:
        world = World()
        client = SharingClient(world)
        subscription = Subscription(group="g", topics={"t": "*"})
        group = group_of(world, subscription, queues={"a": 1}, settings=QUICK)
        assigned = group.assign(MessageQueue("t", "a", 0))
        assigned.start_at(0)
        assigned.lock_until(float("inf"))
        assigned.add_pulled([received(assigned.queue, 0, "k")], 1)
        world.answers |= {
            RequestCode.UPDATE_CONSUMER_OFFSET: says(),
            RequestCode.UNLOCK_BATCH_MQ: says(),
        }
        async with AsyncSimpleConsumer(client, group) as consumer:
            (first,) = await consumer.receive(handling=600.0)
            assert await consumer.receive(timeout=0.0) == []
            world.asleep = 600.0
            (again,) = await consumer.receive(handling=600.0)
            assert (first.reconsume_times, again.reconsume_times) == (0, 1)

    play(scene())
