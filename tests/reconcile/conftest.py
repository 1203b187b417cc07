"""One Spark session for all tests of reconciliation, and the tables that repairs are tried on."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.resend.worlds import World

from reliable_mq.database.sql_clock import DatabaseClock
from reliable_mq.reconcile.runs.spark_session import session
from reliable_mq.runtime.java_home import use_java


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give a session; starting one takes seconds."""
    use_java()
    with session(is_small=True) as started:
        yield started


@pytest.fixture
def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Give tables at 200 s: the servers' clocks are not asked."""
    monkeypatch.setattr(DatabaseClock, "now_on", lambda *_: 200.0)
    made = World(database_url)
    yield made
    made.database.close()
