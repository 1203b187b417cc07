"""Popped messages that cannot come back: the broker says so, and counts them."""

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC
from tests.broker_core.pop_world import INVISIBLE_MS, PopWorld
from tests.broker_core.test_housekeeping import age, clean

from reliable_mq.broker_core.figures import broker_samples
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.pop_answer import batch_ack_body

ALL_DAY = ";".join(f"{hour:02d}" for hour in range(24))


def gone(world: PopWorld) -> float:
    """Return what the metric says."""
    (value,) = (
        sample.value
        for sample in broker_samples(world.state, world.now_ms)
        if sample.name == "reliable_mq_broker_popped_messages_gone_total"
    )
    return value


def test_what_retention_deletes_in_flight_is_logged_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = PopWorld(deleteWhen=ALL_DAY)
    clean(world)
    for number in range(3):
        world.send(b"%d" % number)
    world.create_topic("others")
    world.pass_time(200)
    for _ in range(150):
        world.send(b"y" * 4_000, topic="others")
    first, *_ = world.pop()
    world.ack(first)
    age(world, 2, 80)
    clean(world)
    clean(world)
    world.pass_time(2 * INVISIBLE_MS, step=500)

    assert world.bodies() == []
    assert gone(world) == 2
    for offset in (1, 2):
        line = f"the message at offset {offset} of {TOPIC} queue 0, which group {GROUP} had popped"
        assert f"{line}, does not come back: retention has deleted it meanwhile" in caplog.text


def test_what_retention_deletes_in_flight_holds_nothing_back_that_was_popped_in_order() -> None:
    world = PopWorld(deleteWhen=ALL_DAY)
    clean(world)
    world.send(b"0")
    world.create_topic("others")
    for _ in range(150):
        world.send(b"y" * 4_000, topic="others")
    world.send(b"1")
    first, second = world.pop(order="true")
    age(world, 2, 80)
    clean(world)
    clean(world)
    assert world.state.store.bounds(TOPIC, 0) == (1, 2)
    body = batch_ack_body(GROUP, "b", [(TOPIC, first.handle)])
    assert world.ask(Ask.BATCH_ACK_MESSAGE, {}, body).code == ResponseCode.SUCCESS
    world.ack(second)
    world.pass_time(2 * INVISIBLE_MS, step=500)

    assert world.bodies(order="true") == []


def test_what_a_broker_of_another_name_has_popped_is_logged_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = PopWorld()
    for number in range(2):
        world.send(b"%d" % number)
    world.pop()
    world.properties["brokerName"] = "another"
    world.restart()
    world.pass_time(2 * INVISIBLE_MS, step=500)

    assert gone(world) == 2
    assert "the broker b has handed it out, and this one is another" in caplog.text


def test_what_somebody_has_deleted_is_not_gone() -> None:
    world = PopWorld()
    world.send()
    world.pop()
    world.state.groups.remove(GROUP, world.now_ms)
    world.pass_time(2 * INVISIBLE_MS, step=500)

    assert gone(world) == 0


@pytest.mark.parametrize("is_v2", ["false", "true"])
@pytest.mark.parametrize("size", range(32_480, 32_660, 20))
def test_a_message_without_room_for_a_handle_is_a_dead_letter_and_holds_nobody_up(
    size: int, is_v2: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's client fails at a message of a retry topic that has no handle, and so with all that
    came with it, again and again. Who may send to a topic could stop its consumers so.
    """
    world = PopWorld(enableRetryTopicV2=is_v2)
    world.send(b"large", a="a" * size)
    world.send(b"next")
    assert world.bodies() == [b"large", b"next"]
    world.pass_time(2 * INVISIBLE_MS, step=500)

    dead = [record.body for record in world.records(f"%DLQ%{GROUP}")]
    back = [message for _ in range(6) for message in world.pop()]
    assert sorted([*dead, *(each.body for each in back)]) == [b"large", b"next"]
    assert gone(world) == len(dead)
    assert (b"large" in dead) == ("no room for its handle" in caplog.text) == (size > 32_510)
