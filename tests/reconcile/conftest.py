"""The tables that repairs are tried on."""

from collections.abc import Iterator

import pytest
from tests.resend.worlds import World

from reliable_mq.database.sql_clock import DatabaseClock


@pytest.fixture
def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Give tables at 200 s: the servers' clocks are not asked."""
    monkeypatch.setattr(DatabaseClock, "now_on", lambda *_: 200.0)
    made = World(database_url)
    yield made
    made.database.close()
