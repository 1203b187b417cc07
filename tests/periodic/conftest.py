"""What tests of periodic messages share."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.periodic.schedulers import Begin, SchedulerLife, declared, hourly


@pytest.fixture
def begin(database_url: str) -> Iterator[Begin]:
    """Give a function that starts a scheduler; the first call creates the tables."""
    lives: list[SchedulerLife] = []

    def made(*messages: Any) -> SchedulerLife:
        life = SchedulerLife(database_url, *(messages or (declared(hourly),)))
        if not lives:
            life.database.create_tables()
        lives.append(life)
        return life

    yield made
    for each in lives:
        each.close()
