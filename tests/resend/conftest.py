"""A world of its own for every test of the scheduler."""

from collections.abc import Iterator

import pytest
from tests.resend.worlds import World


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    made = World(database_url)
    yield made
    made.database.close()
