"""The consumer's shell, with a client that plays the world's part."""

import asyncio
import logging
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from tests.client.script import World, group_of, in_turn, says
from tests.client.scripted_consumer import (
    QUICK,
    Held,
    ScriptedClient,
    consumed,
    found,
    members,
    play,
    reading,
    world_with,
)
from tests.waiting import eventually

from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.pulling import received
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.consuming.thread_handling import AnyHandler
from reliable_mq.client.flow import Call
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import RequestTimeout
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.record import (
    Record,
)


def test_what_stands_in_the_way_is_told_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        world = World()
        group = group_of(
            world, Subscription(group="g", topics={"t": "*"}), queues={"a": 1}, settings=QUICK
        )
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = says(
            ResponseCode.SYSTEM_ERROR, remark="no consumer for this group"
        )
        consumer = AsyncPushConsumer(ScriptedClient(world), group, consumed)
        await consumer.start()
        await eventually(lambda: len(world.calls_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) >= 12)
        warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warnings) == 1, "the topic and its retry topic have the same obstacle"
        told = "topics t, %RETRY%g cannot be read: code 1: no consumer for this group"
        assert told in warnings[0]
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("another")
        await eventually(lambda: "reads all its topics again" in caplog.text)
        await consumer.close()

    caplog.set_level(logging.INFO)
    play(scene())


def one_message_in_queue_1(call: Call) -> Command:
    """Answer pulls: queue 1 has a message at offset 0, the others time out."""
    header = PullMessageHeader.decode(call.command.ext_fields)
    if (header.topic, header.queue_id, header.queue_offset) != ("t", 1, 0):
        raise RequestTimeout("nothing new")
    return found(1, Record(topic="t", body=b"x", queue_id=1))(call)


def test_a_queue_that_leaves_is_unlocked_only_when_nothing_of_it_runs_any_more() -> None:
    async def scene() -> None:
        world = world_with(one_message_in_queue_1)
        subscription = Subscription(group="g", topics={"t": "*"})
        group = group_of(world, subscription, queues={"a": 2}, settings=QUICK)
        handler = Held()
        consumer = AsyncPushConsumer(ScriptedClient(world), group, handler)
        await consumer.start()
        await handler.running.wait()
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("client-a", "client-b")
        asked = len(world.calls_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        consumer.rebalance_soon()
        await eventually(
            lambda: len(world.calls_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) >= asked + 2
        )
        for _ in range(100):
            await asyncio.sleep(0)
        assert group.is_leaving(MessageQueue("t", "a", 1))
        assert world.calls_of(RequestCode.UNLOCK_BATCH_MQ) == []
        handler.may_end.set()
        await eventually(lambda: world.calls_of(RequestCode.UNLOCK_BATCH_MQ))
        (last,) = world.calls_of(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert (last.command.ext_fields["queueId"], last.command.ext_fields["commitOffset"]) == (
            *("1", "1"),
        )
        await consumer.close()

    play(scene())


def test_closing_leaves_the_group_once_also_when_it_is_asked_for_twice() -> None:
    async def scene() -> None:
        world = World()
        group = group_of(world, Subscription(group="g", topics={"t": "*"}), queues={"a": 1})
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = says(ResponseCode.SYSTEM_ERROR)
        client = ScriptedClient(world)
        consumer = AsyncPushConsumer(client, group, consumed)
        await consumer.start()
        await asyncio.gather(consumer.close(), consumer.close())
        assert client.left == ["g"]

    play(scene())


def test_messages_behind_calls_that_do_not_end_soon_get_other_hands() -> None:
    """Short calls let a few hands take all; when these are stuck, nothing waits for them."""

    async def scene() -> None:
        subscription = Subscription(group="g", topics={"t": "*"}, ordered=False, series=4)
        world = World()
        group = group_of(world, subscription, queues={"a": 1}, settings=QUICK)
        assigned = group.assign(MessageQueue("t", "a", 0))
        assigned.start_at(0)
        may_end = asyncio.Event()
        calls: list[list[int]] = []

        async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            calls.append([message.queue_offset for message in messages])
            await may_end.wait()
            return [CONSUMED] * len(messages)

        consumer = AsyncPushConsumer(ScriptedClient(world), group, handle)
        for _ in range(100):
            consumer.pool.choice.note_call(0.001, 1)
        records = [Record(topic="t", body=b"x", queue_offset=offset) for offset in range(12)]
        assigned.add_pulled([received(record, assigned.queue) for record in records], 12)
        consumer.pool.pump()
        await asyncio.sleep(0)
        assert calls == [[0, 1, 2, 3], [4, 5, 6, 7]]
        await eventually(lambda: sum(map(len, calls)) >= 12)
        may_end.set()
        await eventually(lambda: not group.find(assigned.queue) or not assigned.unfinished)

    play(scene())


async def exits(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    sys.exit(3)


def exits_its_thread(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    sys.exit(3)


def interrupts_its_thread(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [exits, exits_its_thread, interrupts_its_thread])
def test_a_handler_that_exits_has_failed_and_ends_nothing_else(
    handler: AnyHandler, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        client = ScriptedClient(World())
        consumer, assigned = reading(client, handler)
        consumer.pool.pump()
        await eventually(lambda: not assigned.unfinished)
        assert client.world.calls_of(RequestCode.CONSUMER_SEND_MSG_BACK), "it comes again"

    play(scene())
    assert "the handler failed" in caplog.text


def test_functions_run_in_threads_and_coroutine_functions_on_the_loop() -> None:
    threads: list[str] = []

    def plain(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        threads.append(threading.current_thread().name)
        return [CONSUMED] * len(messages)

    async def tasked(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        threads.append(threading.current_thread().name)
        return [CONSUMED] * len(messages)

    class Callable:
        __call__ = staticmethod(tasked)

    async def scene(handler: AnyHandler) -> None:
        consumer, assigned = reading(ScriptedClient(World()), handler)
        consumer.pool.pump()
        await eventually(lambda: not assigned.unfinished)

    def hands_on(messages: Sequence[ReceivedMessage]) -> Any:
        return tasked(messages)

    for handler in (plain, tasked, partial(tasked), Callable(), hands_on):
        play(scene(handler))
    assert threads == ["rmq-g_0", *["MainThread"] * 4]


IMPATIENT = ClientSettings(close_timeout_seconds=0.02)


def test_a_queue_without_order_moves_on_although_a_handler_hangs() -> None:
    async def scene() -> None:
        may_end, never = asyncio.Event(), asyncio.Event()
        waits = [may_end, never]

        async def hangs(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            await waits.pop(0).wait()
            return [CONSUMED] * len(messages)

        client = ScriptedClient(World())
        consumer, assigned = reading(client, hangs, IMPATIENT)
        group = consumer.group
        consumer.pool.pump()
        await asyncio.sleep(0)
        group.leave(assigned.queue)
        consumer.reader.give_up_queues([assigned])
        await eventually(lambda: not group.find(assigned.queue))
        commits = client.world.calls_of(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert [call.command.ext_fields["commitOffset"] for call in commits] == ["0"]
        # It comes back while the old call still runs, which has nothing to say of it any more.
        again = group.assign(assigned.queue)
        again.start_at(0)
        again.add_pulled([received(Record(topic="t", body=b"x", queue_offset=0), again.queue)], 1)
        may_end.set()
        consumer.pool.handled.clear()
        await consumer.pool.handled.wait()
        assert again.unfinished == 1
        group.invariants()
        for task in consumer.pool.tasks:
            task.cancel()

    play(scene())


def test_an_ordered_queue_waits_for_its_handler_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        handler = Held()
        client = ScriptedClient(World())
        consumer, assigned = reading(client, handler, IMPATIENT, ordered=True)
        consumer.pool.pump()
        await asyncio.sleep(0)
        consumer.group.leave(assigned.queue)
        consumer.reader.give_up_queues([assigned])
        await eventually(lambda: caplog.text.count("it waits for them") >= 2)
        assert not client.world.calls_of(RequestCode.UNLOCK_BATCH_MQ)
        handler.may_end.set()
        await eventually(lambda: not consumer.group.find(assigned.queue))
        (commit,) = client.world.calls_of(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert commit.command.ext_fields["commitOffset"] == "1"

    play(scene())


def test_closing_tells_of_handlers_that_run_on_in_their_threads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_end = threading.Event()

    def hangs(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        may_end.wait(60)
        return [CONSUMED] * len(messages)

    async def scene() -> None:
        client = ScriptedClient(World())
        consumer, _ = reading(client, hangs, IMPATIENT)
        client.world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("client-a")
        await consumer.start()
        consumer.pool.pump()
        await asyncio.sleep(0)
        await consumer.close()
        may_end.set()

    play(scene())
    assert "1 handler calls did not end within 0.02 s" in caplog.text
    assert "threads cannot be stopped" in caplog.text


def test_a_broker_that_does_not_know_the_subscription_is_told_it_in_full() -> None:
    async def scene() -> None:
        client = ScriptedClient(World())
        consumer, assigned = reading(client, consumed)
        client.world.answers[RequestCode.PULL_MESSAGE] = in_turn(
            says(ResponseCode.SUBSCRIPTION_NOT_LATEST), says(ResponseCode.SYSTEM_ERROR)
        )
        consumer.reader.restart(assigned)
        await eventually(lambda: len(client.world.calls_of(RequestCode.PULL_MESSAGE)) == 2)
        assert client.introductions == 1
        await eventually(lambda: len(client.world.calls_of(RequestCode.PULL_MESSAGE)) == 3)
        assert client.introductions == 1
        await consumer.reader.stop()

    play(scene())


def test_a_queue_that_is_paused_is_not_pulled_and_stays_where_it_is() -> None:
    async def scene() -> None:
        world = world_with(one_message_in_queue_1)
        subscription = Subscription(group="g", topics={"t": "*"}, ordered=False)
        group = group_of(world, subscription, queues={"a": 2}, settings=QUICK)
        seen: list[int] = []

        async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            seen.extend(message.queue.queue_id for message in messages)
            return [CONSUMED]

        consumer = AsyncPushConsumer(ScriptedClient(world), group, handle)
        consumer.pause()
        await consumer.start()
        await eventually(lambda: len(consumer.queues) >= 3)
        for _ in range(50):
            await asyncio.sleep(0)
        assert world.calls_of(RequestCode.PULL_MESSAGE) == []
        consumer.resume()
        await eventually(lambda: seen)
        assert seen == [1]
        await consumer.close()

    play(scene())
