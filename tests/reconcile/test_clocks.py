"""Clocks that differ: what counts as moving grows with them, up to the grace time."""

import time
from datetime import timedelta

import pytest
from tests.reconcile.ledgers import GRACE, NOW, TableWriter

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.databases.sql_clocks import clock_skew
from reliable_mq.reconcile.runs.spark_job import Moment


def test_the_difference_to_a_databases_clock_is_measured(postgres_url: str) -> None:
    url = TableWriter(postgres_url).write()

    assert clock_skew([url], GRACE) < 5
    assert clock_skew([url], GRACE, lambda: time.time() + 60) == pytest.approx(60, abs=5)
    assert clock_skew([url], GRACE, lambda: time.time() - 60) == pytest.approx(60, abs=5)


def test_a_clock_beyond_the_grace_time_is_refused_and_after_everything_has_stopped_none_is(
    postgres_url: str,
) -> None:
    url = TableWriter(postgres_url).write()

    with pytest.raises(ConfigurationError, match=r"is 3600 s behind this machine's, more than"):
        clock_skew([url], GRACE, lambda: time.time() + 3600)
    assert clock_skew([url], timedelta(0), lambda: time.time() + 3600) > 3000


def test_a_file_has_no_clock_of_its_own() -> None:
    assert clock_skew(["sqlite:///:memory:"], GRACE, lambda: 0.0) == 0


def test_what_may_have_moved_grows_with_the_difference_of_clocks() -> None:
    def moving(skew: float, grace: timedelta = GRACE) -> timedelta:
        return NOW - Moment(NOW, grace, skew_seconds=skew).moving_since

    assert moving(0) == timedelta(seconds=5)
    assert moving(30) == timedelta(seconds=31)
    assert moving(30, timedelta(seconds=10)) == timedelta(seconds=10)
    assert moving(30, timedelta(0)) == timedelta(0)
