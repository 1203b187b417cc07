"""A world of its own for every test of the scheduler."""

from collections.abc import Iterator

import pytest
from tests.resend.worlds import World

from reliable_mq.escalate.sql_dead_letters import SqlDeadLetters


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    made = World(database_url)
    yield made
    made.database.close()


@pytest.fixture
def letters(world: World) -> SqlDeadLetters:
    database = world.database
    return SqlDeadLetters(
        database.stubs, database.logs, world.escalations, world.audit, database.dialect
    )
