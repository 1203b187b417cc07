"""Handles that a producer forges: no message of it moves what a group has popped."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.broker_core.broker_world import TOPIC, send_header
from tests.broker_core.half_world import COMMIT, end, ending, prepare
from tests.broker_core.pop_world import INVISIBLE_MS, RETRY, ManyQueues, PopWorld

from reliable_mq.broker_core.names import HALF_TOPIC, TIMER_TOPIC
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.properties import encode_properties

FORGED: dict[str, Any] = {
    "POP_CK": "0 1 1 999 0 b 0 9",
    "POP_CK_OFFSET": "0 0",
    "1ST_POP_TIME": "1",
}


@pytest.fixture
def world() -> Iterator[PopWorld]:
    world = PopWorld()
    yield world
    world.check()


def plain(world: PopWorld) -> None:
    world.send(b"m", **FORGED)


def named_in_front(world: PopWorld) -> None:
    header = send_header()
    header["i"] = encode_properties({**FORGED, "UNIQ_KEY": "A" * 32}).decode()
    assert world.ask(Ask.SEND_MESSAGE_V2, header, b"m").code == 0


def in_a_batch(world: PopWorld) -> None:
    items = [
        BatchItem(0, b"m", encode_properties({"UNIQ_KEY": key * 32, **more}))
        for key, more in (("A", FORGED), ("B", {}))
    ]
    assert world.ask(Ask.SEND_BATCH_MESSAGE, send_header(), encode_batch(items)).code == 0


def timed(world: PopWorld) -> None:
    world.send(b"m", TIMER_DELAY_MS="500", **FORGED)
    assert not FORGED.keys() & world.records(TIMER_TOPIC)[0].property_map().keys()
    world.pass_time(1_000)


def delayed(world: PopWorld) -> None:
    world.send(b"m", DELAY="1", **FORGED)
    world.pass_time(2_000)


def a_half(world: PopWorld) -> None:
    sent = prepare(world, **FORGED)
    assert not FORGED.keys() & world.records(HALF_TOPIC)[0].property_map().keys()
    assert end(world, ending(sent, COMMIT)).code == 0


@pytest.mark.parametrize("send", [plain, named_in_front, in_a_batch, timed, delayed, a_half])
def test_what_only_a_broker_may_say_of_a_message_is_taken_out_of_every_send(
    send: Callable[[PopWorld], None],
) -> None:
    world = ManyQueues()
    send(world)

    records = [*world.records(TOPIC, 0), *world.records(TOPIC, 3)]
    assert records
    for record in records:
        assert not FORGED.keys() & record.property_map().keys()
        assert b"POP_" not in record.properties
        assert record.property_map()["UNIQ_KEY"]


def test_acknowledging_a_forged_message_acknowledges_this_message_only(world: PopWorld) -> None:
    """It named offset 9 and "in order": five messages were never handed out."""
    for number in range(3):
        world.send(b"%d" % number)
    world.send(b"poison", POP_CK="0 1 1 999 0 b 0 9")
    for number in range(4, 10):
        world.send(b"%d" % number)

    popped = world.pop(maxMsgNums=4)
    assert [world.ack(message).code for message in popped] == [0] * 4

    assert world.bodies() == [b"%d" % number for number in range(4, 10)]
    world.pass_time(INVISIBLE_MS - 1)
    assert world.bodies() == []


def test_a_forged_message_does_not_come_back_after_its_acknowledgement(world: PopWorld) -> None:
    world.send(b"m", POP_CK="0 1 1 0 0 b 0 0")
    (message,) = world.pop()
    assert world.ack(message).code == 0

    world.pass_time(INVISIBLE_MS + 1_000)

    assert world.bodies() == []


def test_a_handle_that_another_broker_has_stored_is_not_handed_out(world: PopWorld) -> None:
    world.send(b"0")
    world.forge(TOPIC, POP_CK="0 1 1 999 0 b 0 9", KEYS="k")
    world.send(b"2")

    popped = world.pop()

    assert [message.body for message in popped] == [b"0", b"forged", b"2"]
    assert [message.handle.offset for message in popped] == [0, 1, 2]
    assert "POP_CK" not in popped[1].record.property_map()
    assert popped[1].record.property_map()["KEYS"] == "k"
    assert [world.ack(message).code for message in popped] == [0, 0, 0]
    world.pass_time(INVISIBLE_MS + 1_000)
    assert world.bodies() == []


def test_a_message_that_comes_back_has_the_handle_of_its_pop_and_no_other(world: PopWorld) -> None:
    world.forge(TOPIC, POP_CK="0 1 1 0 0 b 0 0")
    world.pop()
    world.pass_time(INVISIBLE_MS + 1_000)

    (again,) = world.pop()

    assert again.topic == RETRY
    assert (again.handle.kind, again.handle.popped_ms) == ("1", world.now_ms)
    assert world.ack(again).code == 0
    world.pass_time(INVISIBLE_MS + 1_000)
    assert world.bodies() == []
