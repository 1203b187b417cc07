"""A fresh broker core for each test; what it keeps must hold together at the end."""

from collections.abc import Iterator

import pytest
from tests.broker_core.broker_world import BrokerWorld


@pytest.fixture
def world() -> Iterator[BrokerWorld]:
    world = BrokerWorld()
    yield world
    for part in ("topics", "groups", "offsets", "clients", "locks", "pulls", "schedule"):
        getattr(world.state, part).invariants()
    world.state.store.invariants()
