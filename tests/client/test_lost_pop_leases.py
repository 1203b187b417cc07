"""A message that its broker hands to somebody else while it is still being handled here."""

import pytest
from tests.client.pop_broker import QUICK, PopBroker, PoppingClient, passed, popping_group
from tests.client.script import World, says
from tests.client.scripted_consumer import Held, play
from tests.waiting import eventually

from reliable_mq.client.consuming.asyncio_message_consumer import AsyncMessageConsumer
from reliable_mq.wire.codes import RequestCode, ResponseCode


def test_a_lease_that_the_broker_does_not_extend_is_said_to_be_lost_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        world = PopBroker(World(), "").world
        refused = says(ResponseCode.NO_MESSAGE, remark="it has come back")
        world.answers[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = refused
        handler = Held()
        group = popping_group(world, QUICK, invisible_seconds=1.0)
        consumer = AsyncMessageConsumer(PoppingClient(world), group, handler)
        await consumer.start()
        await handler.running.wait()
        world.answers[RequestCode.POP_MESSAGE] = says(ResponseCode.POLLING_TIMEOUT)
        await eventually(lambda: bool(lost()))
        await passed(1.0)
        handler.may_end.set()
        await consumer.close()
        (line,) = lost()
        assert line.startswith("group g: message ID0 ")
        assert "it has come back" in line

    def lost() -> list[str]:
        return [line for line in caplog.messages if "did not extend its lease" in line]

    play(scene())
