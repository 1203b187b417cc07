"""Consumers by the message, over a scripted broker: leases, acknowledgements, room, and ends."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from tests.client.pop_broker import (
    QUICK,
    PopBroker,
    PoppingClient,
    passed,
    popping_group,
)
from tests.client.script import World, fails, in_turn, says
from tests.client.scripted_consumer import Held, consumed, play
from tests.waiting import eventually

from reliable_mq.client.consuming.asyncio_message_consumer import (
    AHEAD_COUNT_MAX,
    AsyncMessageConsumer,
)
from reliable_mq.client.consuming.popping import RETURNS_MAX
from reliable_mq.errors import RequestTimeout, UsageError
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Consumed, Outcome, Reject, Retry
from reliable_mq.wire.codes import RequestCode, ResponseCode


def consuming(
    world: World, handler: Any, wanted: str = "*", **wishes: object
) -> AsyncMessageConsumer:
    return AsyncMessageConsumer(
        PoppingClient(world), popping_group(world, QUICK, wanted, **wishes), handler
    )


def test_each_message_is_handled_and_acknowledged_once() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), *[""] * 50)
        consumer = consuming(broker.world, consumed)
        await consumer.start()
        await eventually(lambda: len(broker.acknowledged) == 50)
        await consumer.close()
        assert sorted(broker.acknowledged) == list(range(50))
        assert (broker.out, broker.late) == ({}, [])
        batches = broker.world.calls_of(RequestCode.BATCH_ACK_MESSAGE)
        assert len(batches) < 25, "they are acknowledged together"

    play(scene())


def test_while_a_handler_runs_its_lease_is_extended_and_the_newest_handle_ends_it() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "", "")
        handler = Held()
        consumer = consuming(broker.world, handler, invisible_seconds=1.0)
        await consumer.start()
        await eventually(lambda: len(broker.out) == 2)
        for _ in range(2):
            before = set(broker.handles)
            await eventually(lambda old=before: not old & set(broker.handles))  # type: ignore[misc]
        assert len(broker.out) == 2
        handler.may_end.set()
        await eventually(lambda: len(broker.acknowledged) == 2)
        assert (broker.late, broker.returned) == ([], 0)
        await consumer.close()

    play(scene())


def _is_due(consumer: AsyncMessageConsumer) -> bool:
    now = asyncio.get_running_loop().time()
    return all(
        lease.renew_at <= now
        for queue in consumer.group.popped_queues
        for lease in queue.leases.values()
    )


def test_a_message_that_ends_while_it_is_extended_is_acknowledged_with_the_new_handle() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        handler = Held()
        consumer = consuming(broker.world, handler)
        await consumer.start()
        await handler.running.wait()
        (queue,) = consumer.group.popped_queues
        (lease,) = queue.leases.values()
        lease.is_changing = True  # the request is on its way
        handler.may_end.set()
        await eventually(lambda: not queue.leases)
        await passed(0.05)
        assert broker.acknowledged == []
        lease.is_changing = False
        await eventually(lambda: broker.acknowledged == [0])
        await consumer.close()

    play(scene())


def test_an_acknowledgement_without_an_answer_is_sent_again() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        answer = broker.world.answers[RequestCode.ACK_MESSAGE]
        lost = fails(RequestTimeout("no answer"))
        broker.world.answers[RequestCode.ACK_MESSAGE] = in_turn(lost, answer)
        consumer = consuming(broker.world, consumed)
        await consumer.start()
        await eventually(lambda: broker.acknowledged == [0])
        await consumer.close()

    play(scene())


def test_a_member_takes_no_more_than_its_handlers_begin_soon() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), *[""] * 100)
        handler = Held()
        consumer = consuming(broker.world, handler, concurrency=1)
        consumer.pool.choice.note_call(1000.0, 1)  # a slow handler
        await consumer.start()
        await handler.running.wait()
        await passed(0.05)
        assert broker.counts[0] == 1
        assert len(broker.out) == 1
        handler.may_end.set()
        await eventually(lambda: len(broker.acknowledged) == 100)
        await consumer.close()

    play(scene())


def test_a_quick_handler_has_its_next_messages_here() -> None:
    consumer = consuming(World(), consumed, concurrency=10)
    assert consumer.most_active() == 10 + 2, "nothing is known yet: a second for a message"
    for _ in range(200):
        consumer.pool.choice.note_call(0.0001, 1)
    assert consumer.most_active() == 10 + AHEAD_COUNT_MAX


def test_messages_that_wait_too_long_for_a_handler_go_back() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), *[""] * 4)
        handler = Held()
        consumer = consuming(broker.world, handler, concurrency=2, invisible_seconds=1.0)
        consumer.pool.choice.note_call(0.0, 1)
        for _ in range(100):
            consumer.pool.choice.note_call(0.001, 1)
        await consumer.start()
        await handler.running.wait()
        assert len(broker.out) == 4
        await eventually(lambda: _is_due(consumer))
        changes = broker.world.calls_of
        await consumer.fetcher.renew()
        (queue,) = consumer.group.popped_queues
        assert (queue.running, queue.unfinished) == (2, 2)
        await eventually(lambda: len(changes(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 4)
        broker.tick()
        handler.may_end.set()
        await eventually(lambda: len(broker.acknowledged) == 4)
        assert broker.late == []
        await consumer.close()

    play(scene())


def test_close_gives_back_what_waits_and_what_a_pop_still_brings() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), *[""] * 3)
        handler = Held()
        consumer = consuming(broker.world, handler, concurrency=1)
        for _ in range(200):
            consumer.pool.choice.note_call(0.0001, 1)
        await consumer.start()
        await handler.running.wait()
        assert len(broker.out) == 3
        closing = asyncio.create_task(consumer.close())
        await passed(0.05)
        handler.may_end.set()
        await closing
        assert len(broker.acknowledged) == 1
        broker.tick()
        assert [record.reconsume_times for record in broker.waiting] == [1, 1]
        assert consumer.group.budget.held == 0

    play(scene())


def test_a_failed_message_comes_back_by_the_waits_of_its_group() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        attempts: list[int] = []

        async def fail(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            attempts.append(messages[0].reconsume_times)
            return [Retry() if len(attempts) < 3 else Consumed()]

        consumer = consuming(broker.world, fail, retry_waits=(0.01,))
        await consumer.start()
        await eventually(lambda: len(broker.acknowledged) == 1)
        assert attempts == [0, 1, 2]
        changes = broker.world.calls_of(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        assert {each.command.ext_fields["invisibleTime"] for each in changes} == {"10"}
        await consumer.close()

    play(scene())


def test_without_waits_of_its_own_a_group_waits_as_apaches_does() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")

        async def fail(_: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            return [Retry()]

        consumer = consuming(broker.world, fail)
        await consumer.start()
        changes = broker.world.calls_of
        await eventually(lambda: changes(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
        (change,) = changes(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        assert change.command.ext_fields["invisibleTime"] == "10000"
        await consumer.close()

    play(scene())


def test_a_retry_that_does_not_count_stays_here_and_keeps_its_lease() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        attempts: list[int] = []

        async def busy(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            attempts.append(messages[0].reconsume_times)
            return [Retry(0.01, counts=False) if len(attempts) < 4 else Consumed()]

        consumer = consuming(broker.world, busy)
        await consumer.start()
        await eventually(lambda: broker.acknowledged == [0])
        assert attempts == [0, 0, 0, 0]
        assert broker.world.calls_of(RequestCode.CHANGE_MESSAGE_INVISIBLETIME) == []
        await consumer.close()

    play(scene())


def test_a_retry_that_the_broker_does_not_take_is_tried_here() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        broker.world.answers[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = fails(
            RequestTimeout("no answer")
        )
        attempts: list[int] = []

        async def fail(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            attempts.append(messages[0].reconsume_times)
            return [Retry(0.0) if len(attempts) < 2 else Consumed()]

        consumer = consuming(broker.world, fail)
        consumer.group.settings = QUICK.__class__(settle_retry_seconds=0.01)
        await consumer.start()
        await eventually(lambda: broker.acknowledged == [0])
        assert attempts == [0, 0]
        await consumer.close()

    play(scene())


@pytest.mark.parametrize("outcome", [Retry(), Reject("never")])
def test_a_message_without_hope_is_a_dead_letter_and_acknowledged(outcome: Outcome) -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")

        async def fail(_: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            return [outcome]

        consumer = consuming(broker.world, fail, max_attempts=1)
        await consumer.start()
        await eventually(lambda: broker.acknowledged == [0])
        (sent,) = broker.world.calls_of(RequestCode.SEND_MESSAGE_V2)
        assert sent.command.ext_fields["b"] == "%DLQ%g"
        assert "POP_CK" not in sent.command.ext_fields["i"]
        await consumer.close()

    play(scene())


@pytest.mark.parametrize("most", [1, 3])
def test_returns_without_a_handler_call_do_not_take_the_last_attempt(most: int) -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "", "")
        for record in broker.waiting:
            record.reconsume_times = most + RETURNS_MAX - 1
        seen: list[int] = []

        async def fail_one(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            seen.extend(each.queue_offset for each in messages)
            return [Retry() if each.queue_offset else Consumed() for each in messages]

        consumer = consuming(broker.world, fail_one, max_attempts=most)
        await consumer.start()
        await eventually(lambda: sorted(broker.acknowledged) == [0, 1])
        assert sorted(seen) == [0, 1]
        (sent,) = broker.world.calls_of(RequestCode.SEND_MESSAGE_V2)
        assert sent.command.ext_fields["b"] == "%DLQ%g", "after the attempt that failed"
        await consumer.close()

    play(scene())


def test_a_message_whose_every_lease_ended_is_a_dead_letter_without_a_further_attempt() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        broker.waiting[0].reconsume_times = 3 + RETURNS_MAX
        attempts: list[object] = []

        async def count(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            attempts.append(messages)
            return [Consumed()]

        consumer = consuming(broker.world, count, max_attempts=3)
        await consumer.start()
        await eventually(lambda: broker.acknowledged == [0])
        (sent,) = broker.world.calls_of(RequestCode.SEND_MESSAGE_V2)
        assert "it came back 19 times without an acknowledgement" in sent.command.ext_fields["i"]
        assert attempts == []
        await consumer.close()

    play(scene())


def test_a_message_with_another_tag_of_the_same_hash_is_acknowledged_unhandled() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "Aa", "BB")  # Java's hash of both is 2112
        seen: list[str] = []

        async def note(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            seen.extend(message.tag for message in messages)
            return [Consumed()] * len(messages)

        consumer = consuming(broker.world, note, "Aa")
        await consumer.start()
        await eventually(lambda: sorted(broker.acknowledged) == [0, 1])
        assert seen == ["Aa"]
        await consumer.close()

    play(scene())


def test_a_paused_consumer_pops_nothing_until_it_goes_on() -> None:
    async def scene() -> None:
        broker = PopBroker(World())
        consumer = consuming(broker.world, consumed)
        await consumer.start()
        await eventually(lambda: broker.counts)
        consumer.pause()
        await passed(0.05)
        pops = len(broker.counts)
        await passed(0.05)
        assert len(broker.counts) == pops
        with pytest.raises(UsageError, match="pause and resume it as a whole"):
            consumer.pause([])
        consumer.resume()
        await eventually(lambda: len(broker.counts) > pops)
        await consumer.close()

    play(scene())


def test_a_topic_that_cannot_be_popped_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        world = World()
        broker = PopBroker(world)
        world.answers[RequestCode.POP_MESSAGE] = says(
            ResponseCode.NO_PERMISSION, remark="the topic[t] peeking message is forbidden"
        )
        consumer = consuming(world, consumed)
        await consumer.start()
        await eventually(lambda: len(broker.counts) > 5)
        await consumer.close()

    play(scene())
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    topics = [each for each in warnings if "topic t at a" in each]
    assert len(topics) == 1
