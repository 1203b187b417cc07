"""Acknowledgements that a broker refuses."""

import pytest
from tests.client.pop_broker import PopBroker, popping_group
from tests.client.script import World, in_turn, says
from tests.client.scripted_consumer import consumed, play
from tests.client.test_by_message import consuming
from tests.waiting import eventually

from reliable_mq.client.consuming.asyncio_pop_acks import (
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    pause_after,
)
from reliable_mq.client.consuming.pop_leases import acknowledge
from reliable_mq.client.consuming.popped_queue import PopLease
from reliable_mq.errors import BrokerBusy
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.pop_handle import PopHandle

HANDLE = PopHandle(0, 1, 60_000, 2, "0", "a", 0, 0)


@pytest.mark.parametrize(
    "code",
    [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_BUSY],
)
def test_an_acknowledgement_that_a_busy_broker_refuses_is_sent_again(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        answer = broker.world.answers[RequestCode.ACK_MESSAGE]
        broker.world.answers[RequestCode.ACK_MESSAGE] = in_turn(
            says(code, {"retryAfterMs": "600"}), answer
        )
        consumer = consuming(broker.world, consumed)
        await consumer.start()
        await eventually(lambda: broker.acknowledged == [0], seconds=10.0)
        await consumer.close()

    play(scene())
    assert "not acknowledged" not in caplog.text


def test_the_next_try_of_an_acknowledgement_waits_as_long_as_a_busy_broker_wants() -> None:
    world = World()
    lease = PopLease(
        ReceivedMessage(topic="t", body=b"x", queue=MessageQueue("t", "a", 0), queue_offset=0),
        "t",
        HANDLE,
        1e9,
        1e9,
    )
    pauses = []
    for milliseconds in ("", "x", "100", "1200", "3600000"):
        group = popping_group(world)
        world.answers[RequestCode.ACK_MESSAGE] = says(
            ResponseCode.FLOW_CONTROL, {"retryAfterMs": milliseconds}
        )
        with pytest.raises(BrokerBusy) as raised:
            world.play(acknowledge(group, "a", [lease]))
        pauses.append(pause_after(raised.value))
    assert pauses == [PAUSE_SECONDS, PAUSE_SECONDS, PAUSE_SECONDS, 1.2, PAUSE_SECONDS_MAX]


def test_a_refused_acknowledgement_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        broker.world.answers[RequestCode.ACK_MESSAGE] = says(
            ResponseCode.NO_MESSAGE, remark="offset is illegal"
        )
        consumer = consuming(broker.world, consumed)
        await consumer.start()
        await eventually(lambda: "not acknowledged" in caplog.text)
        await consumer.close()

    play(scene())
    (line,) = [each.message for each in caplog.records if "not acknowledged" in each.message]
    assert "1 handled messages were not acknowledged, so they may be delivered again" in line
    assert "ID0" in line
    assert "offset is illegal" in line
