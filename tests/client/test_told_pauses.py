"""A broker that refuses a request says how long to wait, and the client waits so long."""

from functools import partial

import pytest
from tests.client.script import route_table, says
from tests.client.test_producer import SEND, world_of
from tests.client.test_pulling import PULL, reading
from tests.client.test_slow_brokers import repeated

from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import BrokerBusy
from reliable_mq.message import Message
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.remote_faults import RETRY_AFTER_MS


def test_a_pull_waits_as_long_as_the_broker_says() -> None:
    world, group, assigned = reading()
    world.answers[PULL] = says(ResponseCode.FLOW_CONTROL, {RETRY_AFTER_MS: "250"})
    assert world.play(pull_once(group, assigned)) == 0.25
    assert assigned.failures == 0


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        ("300", [0.45, 0.45]),
        ("0", [0.05, 0.2]),
        ("soon", [0.05, 0.2]),
        ("99999999999", [0.05, 0.2]),
    ],
)
def test_a_broker_that_says_how_long_is_waited_for_as_long(asked: str, waits: list[float]) -> None:
    """And up to half as long besides: not all clients come back together."""
    world, _ = world_of({"t": {"a": 1}})
    producer = SendFlows(ClientSettings(), route_table(), partial(repeated, 0xFF))
    world.answers[SEND] = says(2, {RETRY_AFTER_MS: asked}, remark="busy")
    with pytest.raises(BrokerBusy):
        world.play(producer.send(Message(topic="t", body=b"x")))
    assert world.waits == pytest.approx(waits)


def test_a_broker_that_wants_more_time_than_is_left_is_not_waited_for() -> None:
    world, producer = world_of({"t": {"a": 1}})
    world.answers[SEND] = says(2, {RETRY_AFTER_MS: "60000"}, remark="busy")
    with pytest.raises(BrokerBusy) as told:
        world.play(producer.send(Message(topic="t", body=b"x"), timeout=5.0))
    assert told.value.pause_seconds == 60.0
    assert world.waits == []
