"""Settings for what waits at a broker: pulls, and timed messages. Each refusal is counted."""

import pytest
from tests.broker_core.broker_world import START_MS, BrokerWorld, waiting_pull_header
from tests.broker_core.test_timers import recall, send

from reliable_mq.broker_core.figures import broker_samples
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code


def sample(world: BrokerWorld, name: str) -> float:
    samples = {each.name: each.value for each in broker_samples(world.state, world.now_ms)}
    return samples[f"reliable_mq_broker_{name}"]


@pytest.mark.parametrize(
    "name",
    ["maxWaitingPullsOfConnection", "maxWaitingPullBytesOfConnection", "maxWaitingPullBytes"],
)
def test_pulls_wait_up_to_each_of_their_settings(name: str) -> None:
    """Given room for three pulls, then the fourth is refused; and the setting changes."""
    most = 3 if name == "maxWaitingPullsOfConnection" else 3_200
    world = BrokerWorld(None, **{name: str(most)})
    world.create_topic()
    for _ in range(3):
        assert world.begin(Ask.PULL_MESSAGE, waiting_pull_header()) is None
    assert world.ask(Ask.PULL_MESSAGE, waiting_pull_header()).code == Code.SYSTEM_BUSY
    assert sample(world, "refused_pulls_total") == 1
    more = f"{name}={most * 2}".encode()
    assert world.ask(Ask.UPDATE_BROKER_CONFIG, body=more).code == 0
    assert world.begin(Ask.PULL_MESSAGE, waiting_pull_header()) is None
    assert sample(world, "waiting_pulls") == 4


def test_timed_messages_wait_up_to_their_setting_and_a_recall_is_always_accepted() -> None:
    world = BrokerWorld(maxTimedMessages="3", recallMessageEnable="true")
    world.create_topic()
    later = START_MS + 60_000
    answers = [send(world, b"%d" % n, TIMER_DELIVER_MS=later) for n in range(5)]
    assert [answer.code for answer in answers] == [0, 0, 0, 2, 2]
    assert "maxTimedMessages" in (answers[-1].remark or "")
    assert sample(world, "refused_timed_messages_total") == 2
    assert send(world, b"now").code == 0, "others are not refused"
    assert recall(world, answers[0].ext_fields["recallHandle"]).code == 0
    world.pass_time(1_000)
    assert send(world, b"again", TIMER_DELIVER_MS=later).code == 0
    world.pass_time(61_000)
    assert sample(world, "timers_waiting_messages") == 0
    assert send(world, b"next", TIMER_DELIVER_MS=later + 90_000).code == 0
