"""What is in flight by the message, asked of a running broker by pulls."""

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC
from tests.broker_core.pop_world import PopWorld

from reliable_mq.errors import ProtocolError, RemoteError
from reliable_mq.reconcile.brokers.popped_pulls import (
    Ask,
    pulled_in_flight,
    pulled_notes,
    why_unknown,
)
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply, request

CLUSTER = "DefaultCluster"
COUNT = 10


def asking(world: PopWorld) -> Ask:
    return lambda command: world.ask(RequestCode(command.code), dict(command.ext_fields))


@pytest.fixture
def world() -> PopWorld:
    """A broker with ten messages in flight."""
    world = PopWorld()
    for number in range(COUNT):
        world.send(b"%d" % number)
    return world


def flying(world: PopWorld) -> dict[int, int]:
    found = pulled_in_flight(asking(world), CLUSTER, world.now_ms, world.now_ms)
    return found.get((GROUP, TOPIC), {})


def test_the_first_message_without_an_acknowledgement_is_in_flight(world: PopWorld) -> None:
    assert flying(world) == {}
    messages = world.pop(invisibleTime=60_000)
    assert flying(world) == {0: 0}
    for message in (messages[0], messages[2]):
        world.ack(message)
    assert flying(world) == {0: 1}
    for message in messages[1:2] + messages[3:]:
        world.ack(message)
    assert flying(world) == {}


def test_what_has_come_back_is_in_flight_no_more(world: PopWorld) -> None:
    world.pop()
    world.pass_time(80_000)
    assert flying(world) == {}


def test_a_message_whose_time_is_changed_meanwhile_stays_in_flight(world: PopWorld) -> None:
    messages = world.pop(invisibleTime=60_000)
    for message in messages[1:]:
        world.ack(message)
    ask, asked = asking(world), list[int]()

    def extending(command: Command) -> Command:
        answer = ask(command)
        asked.append(command.code)
        if asked.count(RequestCode.PULL_MESSAGE) == 1:  # its checkpoint is read
            world.extend(messages[0], 120_000)
        return answer

    found = pulled_in_flight(extending, CLUSTER, world.now_ms, world.now_ms)
    assert found == {(GROUP, TOPIC): {0: 0}}
    assert flying(world) == {0: 0}


def test_only_the_newest_notes_are_looked_at_where_there_are_too_many(world: PopWorld) -> None:
    for message in world.pop(invisibleTime=60_000):
        world.ack(message)
    everything = pulled_notes(asking(world), CLUSTER, 0)
    newest = pulled_notes(asking(world), CLUSTER, 0, most=3)
    assert (len(everything.notes), everything.is_whole) == (COUNT + 1, True)
    assert (newest.notes, newest.is_whole) == (everything.notes[-3:], False)


def test_a_broker_at_which_nobody_popped_has_no_notes() -> None:
    def ask(command: Command) -> Command:
        assert command.code == RequestCode.GET_TOPIC_STATS_INFO
        return reply(command, ResponseCode.TOPIC_NOT_EXIST, "no topic")

    assert pulled_notes(ask, CLUSTER, 0) == ([], True)


def test_a_refusal_is_told() -> None:
    def ask(command: Command) -> Command:
        return reply(command, ResponseCode.NO_PERMISSION, "not you")

    with pytest.raises(RemoteError, match="not you"):
        pulled_notes(ask, CLUSTER, 0)


def test_records_that_cannot_be_read_are_told(world: PopWorld) -> None:
    world.pop()
    ask = asking(world)

    def spoilt(command: Command) -> Command:
        answer = ask(command)
        if command.code == RequestCode.PULL_MESSAGE:
            answer.body = b"what is this"
        return answer

    with pytest.raises(ProtocolError, match="a record of rmq_sys_wheel_timer is invalid"):
        pulled_notes(spoilt, CLUSTER, 0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (b"popConsumerKVServiceEnable=true\nenablePopBufferMerge=false", "popConsumerKVService"),
        (b"popConsumerKVServiceEnable=false\nenablePopBufferMerge=true", "enablePopBufferMerge"),
        (b"popConsumerKVServiceEnable=false", ""),
        (None, ""),
    ],
)
def test_settings_that_keep_the_notes_elsewhere_are_named(
    settings: bytes | None, named: str
) -> None:
    answer = (
        reply(request(1), ResponseCode.NO_PERMISSION, "not you")
        if settings is None
        else reply(request(1), ResponseCode.SUCCESS, body=settings)
    )
    assert named in why_unknown(lambda command: answer)
    assert bool(named) is bool(why_unknown(lambda command: answer))
