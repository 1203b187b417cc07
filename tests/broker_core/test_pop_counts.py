"""How many popped messages are in flight: each counts once, and only by its own pop."""

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC
from tests.broker_core.pop_world import INVISIBLE_MS, PopWorld

from reliable_mq.broker_core.delivery import popped_before


def in_flight(world: PopWorld) -> int:
    return world.state.popped.count(TOPIC, GROUP, 0)


def send_some(world: PopWorld, count: int) -> None:
    for number in range(count):
        world.send(b"%d" % number)


def test_an_acknowledgement_that_is_repeated_counts_once() -> None:
    world = PopWorld()
    send_some(world, 10)
    first, *_ = world.pop()
    for _ in range(10):
        assert world.ack(first).code == 0
        world.pass_time(100)

    assert in_flight(world) == 9


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_start_counts_what_is_in_flight(*, is_killed: bool) -> None:
    world = PopWorld()
    send_some(world, 60)
    before = [message for _ in range(10) for message in world.pop(maxMsgNums=5)]
    world.pass_time(1_000)
    for message in before[:5]:
        world.ack(message)
    world.extend(before[5], 60_000)
    world.restart(is_killed=is_killed)
    world.ack(before[6])  # before anything is counted
    world.pass_time(500)
    world.pop(maxMsgNums=10, invisibleTime=60_000)
    assert in_flight(world) == 50 - 5 - 1 + 10
    for message in before[7:10]:
        world.ack(message)
    assert in_flight(world) == 51

    world.pass_time(2 * INVISIBLE_MS)

    assert in_flight(world) == 11


def test_a_start_counts_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popped_before, "_UNITS_AT_ONCE", 4)
    monkeypatch.setattr(popped_before, "_READS_AT_ONCE", 3)
    world = PopWorld(mappedFileSizeConsumeQueue="200")
    send_some(world, 30)
    for message in [message for _ in range(30) for message in world.pop(maxMsgNums=1)][::3]:
        world.ack(message)
    world.restart()
    world.pass_time(300)
    assert in_flight(world) < 20
    world.pass_time(5_000)

    assert in_flight(world) == 20
    assert not world.state.popped.uncounted


def test_what_came_back_before_a_start_is_not_in_flight() -> None:
    world = PopWorld()
    send_some(world, 10)
    world.pop(invisibleTime=1_000)
    world.pass_time(3_000)
    world.restart()
    world.pass_time(1_000)

    assert in_flight(world) == 0
    assert world.state.popped.total == 0


def test_an_extension_changes_no_count_also_after_a_start() -> None:
    world = PopWorld()
    send_some(world, 2)
    first, second = world.pop()
    world.extend(first, 2_000)
    assert in_flight(world) == 2
    world.pass_time(1_000)
    world.restart()
    world.pass_time(100)
    assert in_flight(world) == 2

    world.extend(second, 2_000)
    assert in_flight(world) == 2
    world.pass_time(3_000)

    assert in_flight(world) == 0
