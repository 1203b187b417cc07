"""Another invisible time for a popped message: it has a new handle, and comes back at its time."""

from collections.abc import Iterator

import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC, there
from tests.broker_core.pop_world import INVISIBLE_MS, RETRY, PopWorld, Taken, ack_header

from reliable_mq.broker_core.delivery.pop_extensions import Extended, PopExtensions
from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Answer
from reliable_mq.wire.command import Command
from reliable_mq.wire.pop_handle import PopHandle
from reliable_mq.wire.pop_records import CheckpointKey


@pytest.fixture
def world() -> Iterator[PopWorld]:
    world = PopWorld()
    yield world
    world.check()


def send_some(world: PopWorld, count: int) -> None:
    for number in range(count):
        world.send(b"%d" % number)


def test_an_extended_message_comes_back_later(world: PopWorld) -> None:
    send_some(world, 2)
    first, second = world.pop()
    world.pass_time(4_000)
    answer = world.extend(first, 20_000)
    assert answer.code == Answer.SUCCESS
    assert answer.ext_fields == {
        "popTime": str(START_MS + 4_000),
        "invisibleTime": "20000",
        "reviveQid": str(first.handle.revive_queue),
    }

    world.pass_time(INVISIBLE_MS)
    assert world.bodies() == [b"1"]
    world.pass_time(4_000 + 20_000 - 14_000)
    assert b"0" in world.bodies()
    assert second.body == b"1"


def test_an_extended_message_is_acknowledged_by_its_new_handle(world: PopWorld) -> None:
    send_some(world, 1)
    (message,) = world.pop()
    ext = world.extend(message, 20_000).ext_fields
    handle = message.handle._replace(
        start_offset=0, popped_ms=int(ext["popTime"]), invisible_ms=int(ext["invisibleTime"])
    )
    assert world.ack(message._replace(handle=handle)).code == Answer.SUCCESS

    world.pass_time(40_000)

    assert world.bodies() == []


def extended(message: Taken, answer: Command) -> Taken:
    """Return a message with the handle that an extension has given."""
    ext = answer.ext_fields
    handle = message.handle._replace(
        start_offset=there(message.handle.offset),
        popped_ms=int(ext["popTime"]),
        invisible_ms=int(ext["invisibleTime"]),
    )
    return message._replace(handle=handle)


def test_the_old_handle_acknowledges_nothing_when_the_new_one_was_used(world: PopWorld) -> None:
    send_some(world, 1)
    (message,) = world.pop()
    again = extended(message, world.extend(message, 15_000))
    world.extend(again, 20_000)
    assert world.ack(message).code == Answer.SUCCESS

    world.pass_time(21_000)

    assert world.bodies() == [b"0"]


def test_the_old_handle_counts_while_the_new_one_was_not_used(world: PopWorld) -> None:
    send_some(world, 3)
    first, *_ = messages = world.pop()
    world.pass_time(5_000)
    world.extend(first, INVISIBLE_MS)  # and the answer is lost
    world.pass_time(6_000)

    assert world.ack(first).code == Answer.SUCCESS
    world.pass_time(20_000)

    assert world.bodies() == [message.body for message in messages[1:]]


def test_an_extension_that_is_repeated_makes_no_copy(world: PopWorld) -> None:
    send_some(world, 1)
    (message,) = world.pop()
    for _ in range(5):
        answer = world.extend(message, 20_000)
        world.pass_time(10, step=10)

    world.pass_time(30_000)
    assert [record.body for record in world.records(RETRY)] == [b"0"]
    assert answer.ext_fields["invisibleTime"] == "20000"


def test_the_last_of_repeated_extensions_is_the_one_that_counts(world: PopWorld) -> None:
    send_some(world, 1)
    (message,) = world.pop()
    world.extend(message, 20_000)
    again = extended(message, world.extend(message, 30_000))
    assert world.ack(again).code == Answer.SUCCESS

    world.pass_time(40_000)

    assert world.bodies() == []


def test_extensions_that_nobody_uses_fill_no_memory() -> None:
    extensions = PopExtensions()
    handle = PopHandle(0, 1, 1, 0, "0", "b", 0)
    for number in range(10_050):
        key = CheckpointKey("t", "g", 0, number, 1, "b")
        extensions.note(key, number, Extended(key._replace(popped_ms=2), handle))

    assert len(extensions) == 10_000


def test_a_message_may_be_extended_in_the_millisecond_of_its_pop(world: PopWorld) -> None:
    send_some(world, 1)
    (message,) = world.pop()
    world.extend(message, INVISIBLE_MS)

    world.pass_time(INVISIBLE_MS + 100)

    assert world.bodies() == [b"0"]


@pytest.mark.parametrize("invisible_ms", [0, -5, 1])
def test_a_message_without_invisible_time_comes_back_at_once(
    world: PopWorld, invisible_ms: int
) -> None:
    send_some(world, 1)
    (message,) = world.pop()
    assert world.extend(message, invisible_ms).code == Answer.SUCCESS

    world.pass_time(200, step=20)

    assert world.bodies() == [b"0"]


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        ("secret", GROUP, Answer.NO_PERMISSION),
        (TIMER_TOPIC, GROUP, Answer.NO_PERMISSION),
        (TOPIC, "stranger", Answer.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_an_extension_brings_back_nothing_that_the_group_cannot_pop(
    world: PopWorld, topic: str, group: str, code: int
) -> None:
    world.create_topic("secret", 1, perm=2)
    world.send(b"secret", topic="secret")
    send_some(world, 1)
    (message,) = world.pop()
    end = world.state.store.log.end

    answer = world.extend(message, 1_000, topic=topic, consumerGroup=group)

    assert answer.code == code
    assert world.state.store.log.end == end


def test_a_repeated_acknowledgement_by_the_old_handle_waits_until_it_is_stored(
    world: PopWorld,
) -> None:
    send_some(world, 1)
    (message,) = world.pop()
    world.extend(message, 20_000)  # its answer is lost
    world.is_writing = False
    answers = [world.begin(Ask.ACK_MESSAGE, ack_header(message)) for _ in range(2)]

    assert answers == [None, None]
    world.is_writing = True
    world.finish_turn()
    assert there(world.reply_to(world.last_opaque)).code == Answer.SUCCESS
