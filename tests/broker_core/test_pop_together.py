"""Acknowledgements of many checkpoints in one turn: their records are appended together."""

from collections.abc import Sequence

import pytest
from tests.broker_core.broker_world import TOPIC, connection
from tests.broker_core.pop_world import INVISIBLE_MS, PopWorld, Taken, ack_header

from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.frame import JSON, ROCKETMQ
from reliable_mq.wire.pop_records import CHECKPOINT, PopAcks, decode_acks
from reliable_mq.wire.properties import TAGS
from reliable_mq.wire.record import Record

START = 1_000_000  # of the numbers of requests


def acks_in(world: PopWorld) -> list[tuple[Record, PopAcks]]:
    """Return the stored acknowledgements, in the order of their queue."""
    queue = world.state.store.queues[TIMER_TOPIC, 0]
    records = [world.state.store.reader.message(queue, at) for at in range(queue.end)]
    return [
        (each, decode_acks(each.body, "b"))
        for each in records
        if each is not None and each.property_map()[TAGS] != CHECKPOINT
    ]


def acknowledge(world: PopWorld, messages: Sequence[Taken], form: int = JSON) -> None:
    """Acknowledge messages by one request each, all in one turn."""
    for number, each in enumerate(messages):
        fields = {name: str(value) for name, value in ack_header(each).items()}
        command = request(Ask.ACK_MESSAGE, fields)
        command.opaque, command.serialize_type = START + number, form
        world.core.receive(connection(1), command, world.now_ms)
    world.finish_turn()


def answers(world: PopWorld, count: int) -> list[Command | None]:
    return [world.reply_to(START + number) for number in range(count)]


def popped_world(count: int) -> tuple[PopWorld, list[Taken]]:
    """Return a broker, and messages that each have a checkpoint of their own."""
    world = PopWorld()
    for number in range(count):
        world.send(b"%d" % number)
    found = [each for _ in range(count) for each in world.pop(maxMsgNums=1)]
    assert len({each.handle.start_offset for each in found}) == count
    return world, found


@pytest.mark.parametrize("count", [1, 2, 16, 17, 50])
@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_each_checkpoint_gets_its_record_and_each_request_its_answer(count: int, form: int) -> None:
    world, messages = popped_world(count)
    acknowledge(world, messages, form)

    found = acks_in(world)
    keys = [(acks.key.topic, acks.key.start_offset, acks.offsets) for _, acks in found]
    assert keys == [(TOPIC, n, (n,)) for n in range(count)]
    given = answers(world, count)
    assert [(each.code, each.serialize_type) for each in given if each] == [(0, form)] * count


def test_the_records_are_those_of_acknowledgements_one_by_one() -> None:
    at_once, messages = popped_world(20)
    acknowledge(at_once, messages)
    alone, others = popped_world(20)
    for each in others:
        acknowledge(alone, [each])

    def shown(world: PopWorld) -> list[tuple[object, ...]]:
        return [
            (each.body, each.property_map(), each.queue_offset, each.sys_flag, each.born_host)
            for each, _ in acks_in(world)
        ]

    assert shown(at_once) == shown(alone)


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_acknowledged_together_never_comes_back(is_killed: bool) -> None:
    world, messages = popped_world(40)
    acknowledge(world, messages[:37])
    world.restart(is_killed=is_killed)
    world.pass_time(INVISIBLE_MS + 2_000)

    assert sorted(int(body) for body in world.bodies()) == [37, 38, 39]
    world.check()
