"""Acknowledgements of many checkpoints in one turn: their records are appended together."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker_core.broker_world import GROUP, TOPIC, connection
from tests.broker_core.pop_world import INVISIBLE_MS, PopWorld, Taken, ack_header

from reliable_mq.broker_core.dispatch import queue_tags_code
from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.requests import pop_records
from reliable_mq.errors import MessageRefused
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.frame import JSON, ROCKETMQ
from reliable_mq.wire.pop_records import (
    CHECKPOINT,
    CheckpointKey,
    PopAcks,
    decode_acks,
    encode_acks,
)
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


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"))
NUMBERS = st.integers(0, 2**63 - 1)


@given(
    st.builds(CheckpointKey, NAMES, NAMES, st.integers(0, 2**31 - 1), NUMBERS, NUMBERS, NAMES),
    st.lists(NUMBERS, min_size=1, max_size=40).map(tuple),
    NUMBERS,
    st.integers(0, 7),
)
def test_a_record_by_its_form_has_the_bytes_of_one_that_is_encoded(
    key: CheckpointKey, offsets: tuple[int, ...], due_ms: int, queue_id: int
) -> None:
    acks, out_ms = PopAcks(key, offsets), due_ms // 1000 * 1000
    form = pop_records._ack_form(key, due_ms, out_ms, queue_id, "revive")
    body, properties = form.record(offsets)
    assert body == encode_acks(acks)
    assert decode_acks(body, "") == acks
    said = acks.tag, acks.name, "revive", due_ms, out_ms, queue_id
    assert properties == pop_records._properties(*said)
    code = queue_tags_code(TIMER_TOPIC, properties, 0, {})
    is_one = len(offsets) == 1
    assert code == (pop_records._ACK_CODE if is_one else pop_records._ACKS_CODE)


def test_a_name_with_a_separator_is_refused() -> None:
    key = CheckpointKey("a\x01b", GROUP, 0, 1, 2, "b")
    with pytest.raises(MessageRefused):
        pop_records._ack_form(key, 9, 0, 0, "revive")


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_acknowledged_together_never_comes_back(is_killed: bool) -> None:
    world, messages = popped_world(40)
    acknowledge(world, messages[:37])
    world.restart(is_killed=is_killed)
    world.pass_time(INVISIBLE_MS + 2_000)

    assert sorted(int(body) for body in world.bodies()) == [37, 38, 39]
    world.check()


def batch_of(messages: Sequence[Taken], times: int) -> Command:
    """Return one request that acknowledges messages of one checkpoint each, again and again."""
    acks = [
        {
            "c": GROUP,
            "t": TOPIC,
            "r": "0",
            "q": 0,
            "so": each.handle.start_offset,
            "rq": each.handle.revive_queue,
            "pt": each.handle.popped_ms,
            "it": each.handle.invisible_ms,
            "b": "/////w==",
        }
        for each in messages
    ]
    body = msgspec.json.encode({"acks": acks * times, "brokerName": "b"})
    return request(Ask.BATCH_ACK_MESSAGE, {}, body)


def test_messages_that_are_acknowledged_again_and_again_are_recorded_once() -> None:
    world = PopWorld()
    for number in range(32):
        world.send(b"%d" % number)
    message, *_ = world.pop()
    for number in range(16):  # their offsets, written again each time, are longer than a record
        command = batch_of([message], 4_096)
        command.opaque = START + number
        world.core.receive(connection(1), command, world.now_ms)
    world.finish_turn()

    ((_, acks),) = acks_in(world)
    assert acks.offsets == tuple(range(32))
    assert {each.code for each in answers(world, 16) if each} == {0}


def test_records_that_are_long_together_are_appended_one_by_one() -> None:
    world = PopWorld(mappedFileSizeCommitLog="131072", maxMessageSize="4096")
    popped = world.state.popped
    many = range(10**17, 10**17 + 4_000)
    for first in range(2):
        key = CheckpointKey(TOPIC, GROUP, 0, first, 1, "b")
        popped.acknowledge(key, world.now_ms + INVISIBLE_MS, 0, many)
    world.finish_turn()

    found = acks_in(world)
    assert [(acks.key.start_offset, len(acks.offsets)) for _, acks in found] == [
        (0, 4_000),
        (1, 4_000),
    ]
