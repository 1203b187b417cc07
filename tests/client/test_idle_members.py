"""Members of a group to whom no queue is left."""

import logging

import pytest
from tests.client.scripted_consumer import members
from tests.client.test_assignment import MEMBERS, world_and_group

from reliable_mq.client.consuming.assignment import rebalance
from reliable_mq.client.consuming.obstacles import Obstacles


def test_a_member_beyond_the_number_of_queues_is_told_once_and_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq")
    obstacles = Obstacles("g")
    for ordered, advice in ((True, "more queues"), (False, 'more queues, or consume by="message"')):
        world, group = world_and_group(ordered=ordered)
        world.answers[MEMBERS] = members("a", "aa", "b", "bb", "client-a")
        for _ in range(2):
            obstacles.note_idle(world.play(rebalance(group)).idle, ordered=ordered)
        (line,) = caplog.messages
        assert "5 members share 4 queues of topic t, so this one gets no message" in line
        assert line.endswith(advice)
        world.answers[MEMBERS] = members("a", "aa", "b", "client-a")
        obstacles.note_idle(world.play(rebalance(group)).idle, ordered=ordered)
        assert len(caplog.messages) == 1
        caplog.clear()
