"""A consumer group that gives a message up does so for itself: the others are still waited for."""

import pytest
from tests.resend.worlds import MAX, QUEUE, World

from reliable_mq.escalate.sql_settlement import settlement_of

GONE = {QUEUE: (9, 9)}
"""A group has gone past the message, which its broker has lost."""


@pytest.fixture
def world(database_url: str) -> World:
    return World(database_url)


def give_up(world: World, stub: str, group: str) -> None:
    with world.database.engine.begin() as connection:
        settlement_of(world.database).exhaust(
            connection, stub, group=group, reason="no", now=105.0, topic="orders"
        )


def test_a_dead_letter_of_a_group_that_is_not_required_ends_no_resends(world: World) -> None:
    stub = world.sent("a", groups=("payments",))
    world.broker.progress["payments"] = GONE

    give_up(world, stub, "analytics")

    assert world.open_escalations() == [("dead letter", "a")]
    assert not world.row(stub)["given_up"]
    assert world.scheduler.run_once(105.0).sent == 1


def test_a_message_that_one_group_gave_up_is_sent_again_for_one_that_misses_it(
    world: World,
) -> None:
    stub = world.sent("a", groups=("g", "h"))
    world.broker.progress = {"g": GONE, "h": GONE}

    give_up(world, stub, "g")

    assert world.scheduler.run_once(105.0).sent == 1
    assert world.open_escalations() == [("dead letter", "a")]


def test_it_is_over_when_the_last_one_that_is_waited_for_consumes_it_or_gives_it_up(
    world: World,
) -> None:
    consumed, given_up = world.sent("a", groups=("g", "h")), world.sent("b", groups=("g", "h"))
    for stub in (consumed, given_up):
        give_up(world, stub, "g")
    world.log(consumed, group="h", state=1)
    give_up(world, given_up, "h")
    world.broker.progress = {"g": GONE, "h": GONE}

    counts = world.scheduler.run_once(105.0)

    assert (counts.sent, counts.escalated) == (0, 0)
    assert world.new_due().agenda() == []
    told = [("dead letter", "a"), ("dead letter", "b"), ("dead letter", "b")]
    assert world.open_escalations() == told
    assert {world.row(stub)["status"] for stub in (consumed, given_up)} == {0}


def test_a_group_that_consumes_it_first_leaves_nobody_to_wait_for(world: World) -> None:
    stub = world.sent("a", groups=("g", "h"))
    world.log(stub, group="h", state=1)

    give_up(world, stub, "g")

    assert world.row(stub)["given_up"]
    assert world.new_due().agenda() == []


def test_one_whose_sends_are_used_up_has_been_told_of_already(world: World) -> None:
    stub = world.sent("a", groups=("g", "h"))
    give_up(world, stub, "g")
    world.log(stub, group="h", state=1)
    world.change(stub, count=MAX)

    assert world.scheduler.run_once(105.0).escalated == 0
    assert world.open_escalations() == [("dead letter", "a")]


def test_a_retry_waits_for_every_group_again(world: World) -> None:
    stub = world.sent("a", groups=("g", "h"))
    give_up(world, stub, "g")

    with world.database.engine.begin() as connection:
        world.hands.retry(connection, [stub], "ann", "fixed", 105.0)
    world.broker.progress = {"g": GONE, "h": {QUEUE: (0, 9)}}
    world.scheduler.run_once(105.0)

    assert world.row(stub)["given_up_by"] == ""
