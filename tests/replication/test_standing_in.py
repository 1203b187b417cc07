"""A slave stands in for its master: what waits for its time comes, from another master."""

from pathlib import Path

import pytest
from tests.replication.acting_world import acting_world
from tests.waiting import eventually, run_scene

from reliable_mq.replication import standing_in as rule
from reliable_mq.runtime import standing_in, table_follower
from reliable_mq.wire.properties import DELAY

ALL = ("other", "master", "slave")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "ALONE_SECONDS", 0.1)
    monkeypatch.setattr(table_follower, "TABLES_SECONDS", 0.2)
    monkeypatch.setattr(standing_in, "LEARN_SECONDS", 0.2)


BEATS = {"brokerHeartbeatInterval": "100"}


def names(kind: str, count: int) -> list[bytes]:
    return [b"%s %d" % (kind.encode(), number) for number in range(count)]


def test_delayed_messages_come_from_another_master_and_not_again_from_their_own(
    tmp_path: Path,
) -> None:
    delayed = names("delayed", 50)

    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.send("master", delayed, **{DELAY: 2})
            await world.copied()
            await world.stop("master")
            await eventually(world.is_acting)
            await eventually(lambda: sorted(world.bodies("other")) == sorted(delayed))
            await world.start("master")
            await eventually(lambda: not world.is_acting())
            await world.send("master", [b"now"])
            await eventually(lambda: world.bodies("master") == [b"now"])
            await world.send("master", [b"last"], **{DELAY: 2})
            await eventually(lambda: world.bodies("master") == [b"now", b"last"])
            await eventually(lambda: world.end("slave") == world.end("master"))
            assert sorted(world.bodies("other")) == sorted(delayed), "each once"

    run_scene(scene())
