"""What the doctor says of a topic that closed: why, and whether anything waits."""

import time
from contextlib import closing
from pathlib import Path

from tests.doctor.worlds import World

from reliable_mq.doctor.finding import Level
from reliable_mq.resend.sql_resending import topics_of
from reliable_mq.resend.topic_gate import PROBE_STUBS


def test_a_topic_that_is_closed_for_lack_of_slaves_names_them(tmp_path: Path) -> None:
    with closing(World(f"sqlite:///{tmp_path}/shop.db")) as world:
        world.stub()
        error = "SLAVE_NOT_AVAILABLE: the master b has stored it"
        topics_of(world.database).add_failures("orders", PROBE_STUBS, time.time(), error)
        (told,) = world.findings("topics")

    assert told.level is Level.ERROR
    assert "it is a SYNC_MASTER with too few of them" in told.remedy


def test_a_closed_topic_for_which_nothing_waits_is_a_warning(tmp_path: Path) -> None:
    with closing(World(f"sqlite:///{tmp_path}/shop.db")) as world:
        topics_of(world.database).add_failures("orders", PROBE_STUBS, time.time(), "gone")
        (told,) = world.findings("topics")

    assert (told.level, "nothing waits" in told.remedy) == (Level.WARNING, True)
