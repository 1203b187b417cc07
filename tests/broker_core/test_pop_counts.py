"""How many popped messages are in flight: each counts once, and only by its own pop."""

from tests.broker_core.broker_world import GROUP, TOPIC
from tests.broker_core.pop_world import INVISIBLE_MS, PopWorld


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


def test_acknowledgements_of_pops_before_a_start_do_not_count_for_later_ones() -> None:
    world = PopWorld()
    send_some(world, 20)
    before = world.pop(maxMsgNums=10)
    world.pass_time(1_000)
    world.restart()
    world.pass_time(100)
    world.pop(maxMsgNums=10, invisibleTime=60_000)
    for message in before[:5]:
        world.ack(message)
    assert in_flight(world) == 10

    world.pass_time(2 * INVISIBLE_MS)

    assert in_flight(world) == 10


def test_an_extension_changes_no_count_also_after_a_start() -> None:
    world = PopWorld()
    send_some(world, 2)
    first, second = world.pop()
    world.extend(first, 2_000)
    assert in_flight(world) == 2
    world.pass_time(1_000)
    world.restart()
    world.pass_time(100)
    assert in_flight(world) == 0

    world.extend(second, 2_000)
    assert in_flight(world) == 1
    world.pass_time(3_000)

    assert in_flight(world) == 0
