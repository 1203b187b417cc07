"""A message that waits says where it belongs; what no client could send to is reached by none."""

import pytest
from tests.broker_core.broker_world import START_MS, TOPIC, BrokerWorld, send_header

from reliable_mq.broker_core.names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Answer


@pytest.fixture
def world(world: BrokerWorld) -> BrokerWorld:
    world.create_topic()
    return world


def delivered(world: BrokerWorld) -> list[bytes]:
    return [record.body for record in world.records(TOPIC)]


def test_nobody_may_send_to_the_topic_of_the_wheel(world: BrokerWorld) -> None:
    named = {"TIMER_OUT_MS": str(START_MS + 1_000), "TIMER_DELIVER_MS": str(START_MS + 1_500)}
    for properties in ({}, {**named, "REAL_TOPIC": "../../escaped", "REAL_QID": "0"}):
        header = send_header(TIMER_TOPIC, 0, **properties)

        answer = world.ask(Ask.SEND_MESSAGE_V2, header, b"junk")

        assert answer.code == Answer.NO_PERMISSION
        assert answer.remark == f"Sending message to topic[{TIMER_TOPIC}] is forbidden."
    assert world.records(TIMER_TOPIC) == []


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"TIMER_OUT_MS": "x"},
        {"REAL_TOPIC": "../../escaped"},
        {"REAL_TOPIC": "t" * 300},
        {"REAL_TOPIC": HALF_TOPIC},
        {"REAL_TOPIC": OP_TOPIC},
        {"REAL_TOPIC": TIMER_TOPIC},
        {"REAL_QID": str(2**31)},
        {"REAL_QID": "99999999999"},
        {"REAL_QID": "-5"},
        {"TIMER_ROLL_TIMES": "9" * 5_000},
    ],
)
def test_what_another_broker_let_into_the_topic_of_the_wheel_goes_nowhere(
    world: BrokerWorld, place: dict[str, str]
) -> None:
    named = {
        "TIMER_OUT_MS": str(START_MS),
        "TIMER_DELIVER_MS": str(START_MS + 500),
        "TIMER_DEQUEUE_MS": "1",
        "REAL_TOPIC": TOPIC,
        "REAL_QID": "3",
    }
    world.forge(TIMER_TOPIC, 0, **({**named, **place} if place else {}))
    world.send(b"late", TIMER_DELAY_MS="500")

    world.pass_time(2_000)

    assert delivered(world) == [b"late"]
    assert set(world.state.store.appender.lanes) <= {(TIMER_TOPIC, 0), (TOPIC, 0), (TOPIC, 3)}
    world.stop()
    world.start()
    assert delivered(world) == [b"late"]


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"REAL_TOPIC": "../../escaped"},
        {"REAL_TOPIC": OP_TOPIC},
        {"REAL_TOPIC": "t" * 300},
        {"REAL_TOPIC": TOPIC, "REAL_QID": "x"},
        {"REAL_TOPIC": TOPIC, "REAL_QID": "99999999999"},
    ],
)
def test_a_delayed_message_that_may_not_be_where_it_says_is_passed_over(
    world: BrokerWorld, place: dict[str, str]
) -> None:
    world.forge(SCHEDULE_TOPIC, 0, DELAY="1", **place)
    world.send(b"kept", DELAY="1")

    world.pass_time(1_200)

    assert delivered(world) == [b"kept"]
    assert set(world.state.store.appender.lanes) == {(SCHEDULE_TOPIC, 0), (TOPIC, 0)}
