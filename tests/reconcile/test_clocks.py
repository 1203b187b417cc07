"""Clocks that differ: what counts as moving grows with them, up to the grace time."""

import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.reconcile.ledgers import GRACE, NOW, StoreWriter, TableWriter, message_id

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers import topic_pulls
from reliable_mq.reconcile.brokers.spark_brokers import open_logs
from reliable_mq.reconcile.clocks import LedgerClock, largest_difference
from reliable_mq.reconcile.runs.run_options import RunOptions
from reliable_mq.reconcile.runs.spark_job import JudgementTime
from reliable_mq.reconcile.runs.spark_opening import database_clocks, open_ledgers
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import reply, request


def test_the_difference_to_a_databases_clock_is_measured(postgres_url: str) -> None:
    url = TableWriter(postgres_url).write()

    def difference(local: float) -> float:
        (clock,) = database_clocks([url], lambda: time.time() + local)
        return clock.ahead

    assert abs(difference(0)) < 5
    assert difference(60) == pytest.approx(-60, abs=5)
    assert difference(-60) == pytest.approx(60, abs=5)


def test_a_clock_beyond_the_grace_time_is_refused_and_after_everything_has_stopped_none_is() -> (
    None
):
    clocks = [LedgerClock("the broker b-1", 20, 1), LedgerClock("the database shop", -3600.4, 0.1)]

    with pytest.raises(
        ConfigurationError,
        match=r"clock of the database shop is 3600 s behind this machine's, more",
    ):
        largest_difference(clocks, GRACE)
    assert largest_difference(clocks, timedelta(0)) == pytest.approx(3600.3)
    assert largest_difference(clocks[:1], GRACE) == 19
    assert largest_difference([LedgerClock("a broker", 0.4, 0.5)], GRACE) == 0


def test_a_file_has_no_clock_of_its_own() -> None:
    (clock,) = database_clocks(["sqlite:///:memory:"], lambda: 0.0)

    assert clock.difference == 0


def test_what_may_have_moved_grows_with_the_difference_of_clocks() -> None:
    def moving(skew: float, grace: timedelta = GRACE) -> timedelta:
        return NOW - JudgementTime(NOW, grace, skew_seconds=skew).moving_since

    assert moving(0) == timedelta(seconds=5)
    assert moving(30) == timedelta(seconds=31)
    assert moving(30, timedelta(seconds=10)) == timedelta(seconds=10)
    assert moving(30, timedelta(0)) == timedelta(0)


def test_clocks_matter_as_long_as_there_is_a_grace_time() -> None:
    skew = timedelta(seconds=30)

    assert JudgementTime(NOW, GRACE, skew_seconds=30).slack == skew
    assert JudgementTime(NOW, timedelta(0), skew_seconds=30).slack == timedelta(0)


def test_a_running_broker_tells_the_time() -> None:
    """Given what a broker says of its start and how long ago that was, Apache's with commas in
    large numbers, then that is its time; one that does not say has none that is known."""

    def clock(**table: str) -> float | None:
        question = request(RequestCode.GET_BROKER_RUNTIME_INFO)
        return topic_pulls.clock_in(reply(question, body=fastjson.dumps({"table": table})))

    runtime = "[ 1,234 days, 2 hours, 3 minutes, 4 seconds ]"
    seconds = 1234 * 86_400 + 2 * 3_600 + 3 * 60 + 4
    assert clock(bootTimestamp="1500", runtime=runtime) == 1.5 + seconds
    assert clock(bootTimestamp="", runtime=runtime) is None
    assert clock(bootTimestamp="1500") is None


def test_a_store_whose_newest_record_is_of_the_future_has_a_clock_that_is_ahead(
    tmp_path: Path,
) -> None:
    """Given a store whose broker's clock is ahead by less than the grace time, then that much
    counts as moving; by more, and the run ends with a line that names it. A clock that is behind
    looks as a broker that has nothing to do."""
    store = StoreWriter(tmp_path / "store")
    store.send(message_id(1), b"body")
    store.send(message_id(2), b"body", queue_id=3, store_time=NOW)
    path = store.write()
    url = TableWriter(f"sqlite:///{tmp_path}/shop.db").write()

    def skew(now: datetime) -> float:
        options = RunOptions(url, path, tmp_path / "out", now, GRACE)
        return open_ledgers(options).ledgers.skew_seconds

    assert skew(NOW + timedelta(days=1)) == 0
    assert skew(NOW - timedelta(seconds=30)) == 30
    with pytest.raises(
        ConfigurationError, match=r"by the newest record in its log, is 1200 s ahead"
    ):
        skew(NOW - 2 * GRACE)
    assert open_logs({"": path}).clocks == ()
