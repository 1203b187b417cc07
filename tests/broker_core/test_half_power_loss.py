"""Half messages when the lights go out at any operation: none is lost, none is settled twice."""

from collections import Counter
from random import Random

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld
from tests.broker_core.half_world import (
    COMMIT,
    INTERVAL_MS,
    ROLLBACK,
    answering,
    bodies,
    end,
    ending,
    prepare,
    produce,
    questions,
)

from reliable_mq.testing.memory_disk import MachineStopped, MemoryDisk
from reliable_mq.wire.command import Command

HALVES = 9
SEEDS = range(3)


def decision(number: int) -> int:
    return ROLLBACK if number % 3 == 1 else COMMIT


def run_until_stopped(disk: MemoryDisk, prepared: set[int]) -> None:
    """Two lives of a broker. Every third producer says nothing before it is asked."""
    for life in range(2):
        world = BrokerWorld(disk)
        world.now_ms += life * 10 * INTERVAL_MS
        produce(world)
        for number in range(life * HALVES, (life + 1) * HALVES):
            sent = prepare(world, b"%d" % number, UNIQ_KEY=f"K{number}")
            prepared.add(number)
            if number % 3 < 2:
                end(world, ending(sent, decision(number)))
        pass_round(world)
        for question in questions(world)[:1]:
            answer(world, question)
        if life:
            pass_round(world)
        world.stop()


def pass_round(world: BrokerWorld) -> None:
    world.pass_time(INTERVAL_MS + 6_000, step=6_000)


def answer(world: BrokerWorld, question: Command) -> None:
    number = int(question.ext_fields["msgId"].removeprefix("K"))
    end(world, answering(question, decision(number)))


def settle_what_is_left(disk: MemoryDisk) -> BrokerWorld:
    """Start again and answer whatever is asked, until nothing is."""
    world = BrokerWorld(disk)
    world.now_ms += 100 * INTERVAL_MS
    for _ in range(3):
        produce(world)
        pass_round(world)
        for question in questions(world):
            answer(world, question)
    assert len(world.state.halves) == 0
    world.state.halves.invariants()
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_every_half_is_settled_once_after_a_power_loss_at_any_operation(seed: int) -> None:
    whole = MemoryDisk()
    run_until_stopped(whole, set())
    random = Random(seed)
    for number in random.sample(range(len(whole.operations)), 30):
        disk, prepared = MemoryDisk(), set[int]()
        disk.stop_before, disk.torn = number, random.choice((0, random.randint(1, 700)))
        with pytest.raises(MachineStopped):
            run_until_stopped(disk, prepared)
        disk.lose_power(random)
        world = settle_what_is_left(disk)
        delivered = Counter(int(body) for body in bodies(world, TOPIC, 3))
        assert all(count == 1 for count in delivered.values()), (number, delivered)
        assert all(decision(half) == COMMIT for half in delivered), (number, delivered)
        wanted = {half for half in prepared if decision(half) == COMMIT}
        assert wanted <= delivered.keys(), (number, wanted - delivered.keys())
