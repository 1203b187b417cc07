"""The simple consumer by the message, over a scripted broker."""

import asyncio

import pytest
from tests.client.pop_broker import (
    QUICK,
    PopBroker,
    PoppingClient,
    offsets_of,
    passed,
    popping_group,
)
from tests.client.script import World, fails, in_turn
from tests.client.scripted_consumer import play
from tests.waiting import eventually

from reliable_mq.client.consuming.asyncio_message_receiver import AsyncMessageReceiver
from reliable_mq.errors import LeaseLost, RequestTimeout, UsageError
from reliable_mq.wire.codes import RequestCode


def receiving(world: World) -> AsyncMessageReceiver:
    return AsyncMessageReceiver(PoppingClient(world), popping_group(world, QUICK))


def test_what_is_received_is_acknowledged_at_its_broker() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), *[""] * 5)
        receiver = receiving(broker.world)
        receiver.start()
        first = await receiver.receive(2, timeout=60.0, handling=7.0)
        assert len(first) == 2
        assert offsets_of(broker.handles) == [0, 1]
        assert broker.handles[0].split()[2] == "7000"
        await receiver.ack(*first)
        assert broker.acknowledged == [0, 1]
        rest = await receiver.receive(9, timeout=60.0)
        with pytest.raises(LeaseLost, match="it was settled already"):
            await receiver.ack(first[0], *rest)
        assert broker.acknowledged == [0, 1, 2, 3, 4], "the others are acknowledged"
        assert await receiver.receive(9, timeout=0.01) == []
        await receiver.close()

    play(scene())


def test_an_acknowledgement_that_fails_may_be_repeated() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        answer = broker.world.answers[RequestCode.ACK_MESSAGE]
        lost = fails(RequestTimeout("no answer"))
        broker.world.answers[RequestCode.ACK_MESSAGE] = in_turn(lost, answer)
        receiver = receiving(broker.world)
        (message,) = await receiver.receive(1, timeout=60.0)
        with pytest.raises(RequestTimeout):
            await receiver.ack(message)
        await receiver.ack(message)
        assert broker.acknowledged == [0]
        await receiver.close()

    play(scene())


def test_a_lease_that_is_over_is_lost_and_the_message_comes_again() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        receiver = receiving(broker.world)
        (message,) = await receiver.receive(1, timeout=60.0, handling=0.05)
        (again,) = await receiver.receive(1, timeout=60.0, handling=60.0)
        assert again.reconsume_times >= 1, "more often where nobody took it in time"
        for late in (receiver.ack(message), receiver.retry(message), receiver.extend(message, 9)):
            with pytest.raises(
                LeaseLost, match="message ID0 is not yours any more: its handling time is over"
            ):
                await late
        await receiver.ack(again)
        assert len(broker.acknowledged) == 1
        assert broker.late == []
        await receiver.close()

    play(scene())


def test_a_message_of_another_consumer_is_refused() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "", "")
        one, other = receiving(broker.world), receiving(broker.world)
        (message,) = await one.receive(1, timeout=60.0)
        with pytest.raises(LeaseLost):
            await other.ack(message)
        with pytest.raises(UsageError, match="a received message is needed, not a list"):
            await one.ack([message])  # type: ignore[arg-type]
        assert broker.acknowledged == []
        await one.close()
        await other.close()

    play(scene())


def test_extend_and_retry_say_when_a_message_comes_again() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "", "")
        receiver = receiving(broker.world)
        extended, retried = await receiver.receive(2, timeout=60.0)
        await receiver.extend(extended, 3600.0)
        await receiver.retry(retried, after=1.5)
        assert sorted(each.split()[2] for each in broker.handles) == ["1500", "3600000"]
        await receiver.ack(extended)
        with pytest.raises(LeaseLost):
            await receiver.ack(retried)
        assert len(broker.acknowledged) == 1
        await receiver.close()

    play(scene())


@pytest.mark.parametrize("seconds", [0, -1.0, 43_201.0])
def test_times_that_no_broker_takes_are_refused(seconds: float) -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        receiver = receiving(broker.world)
        (message,) = await receiver.receive(1, timeout=60.0)
        with pytest.raises(UsageError, match="must be positive"):
            await receiver.extend(message, seconds)
        with pytest.raises(UsageError, match="must be positive"):
            await receiver.receive(1, timeout=60.0, handling=seconds)
        await receiver.close()

    play(scene())


def test_a_receiver_that_is_cancelled_gives_back_what_its_pop_brings() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        receiver = receiving(broker.world)
        waiting = asyncio.create_task(receiver.receive(1, timeout=60.0))
        await eventually(lambda: broker.out)  # the answer is on its way
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await eventually(lambda: (broker.tick(), len(broker.waiting) == 1)[1])  # type: ignore[func-returns-value]
        await receiver.close()

    play(scene())


def test_close_ends_a_receive_and_gives_messages_back() -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        receiver = receiving(broker.world)
        (message,) = await receiver.receive(1, timeout=60.0)
        waiting = asyncio.create_task(receiver.receive(1, timeout=60.0))
        await passed(0.05)
        await receiver.close()
        assert await waiting == []
        broker.tick()
        assert len(broker.waiting) == 1
        with pytest.raises(UsageError, match="closed"):
            await receiver.ack(message)

    play(scene())
