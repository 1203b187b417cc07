"""A scrape never waits long for a database, and never reads it often."""

import threading
import time
from collections.abc import Sequence

import pytest
from tests.waiting import until

from reliable_mq.measuring.thread_kept_readings import (
    KEPT_SECONDS,
    STALE_SECONDS,
    KeptReading,
    KeptReadings,
)
from reliable_mq.telemetry.families import Sample

UNSENT = Sample("reliable_mq_outbox_unsent_stubs", 7, ("main", "orders"))
UP, AGE = "reliable_mq_database_up", "reliable_mq_database_reading_age_seconds"


class Source:
    """A database that answers, fails or hangs, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.reads = 0
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.reading = KeptReading("main", self.read, clock=lambda: self.now)
        self.kept = KeptReadings([self.reading], patience=60.0)

    def read(self) -> Sequence[Sample]:
        self.reads += 1
        assert self.answers.wait(60.0)
        if self.error is not None:
            raise self.error
        return [UNSENT]

    def values(self) -> dict[str, float]:
        return {each.name: each.value for each in self.kept.samples()}


def test_figures_are_kept_and_read_again_when_they_are_old() -> None:
    source = Source()
    assert source.values() == {UNSENT.name: 7, UP: 1, AGE: 0}
    source.now += KEPT_SECONDS / 2
    assert source.values() == {UNSENT.name: 7, UP: 1, AGE: KEPT_SECONDS / 2}
    assert source.reads == 1
    source.now += KEPT_SECONDS
    assert source.values()[AGE] == 0
    assert source.reads == 2


def test_a_hundred_scrapes_at_once_read_once() -> None:
    source = Source()
    source.answers.clear()
    scrapes = [threading.Thread(target=source.values) for _ in range(100)]
    for scrape in scrapes:
        scrape.start()
    until(lambda: source.reads == 1)
    source.answers.set()
    for scrape in scrapes:
        scrape.join()
    assert source.reads == 1


def test_a_database_that_fails_has_no_figures_and_is_not_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source()
    source.error = ZeroDivisionError("a bug")
    assert source.values() == {UP: 0, AGE: 0}
    source.now += KEPT_SECONDS
    assert source.values()[UP] == 0
    assert len(caplog.records) == 1  # the second is within a minute
    source.error = None
    source.now += KEPT_SECONDS
    assert source.values()[UP] == 1


def test_a_database_that_hangs_costs_a_scrape_only_its_patience() -> None:
    source = Source()
    source.values()
    source.answers.clear()
    source.now += KEPT_SECONDS
    source.kept = KeptReadings([source.reading], patience=0.01)
    begun = time.monotonic()
    values = source.values()
    assert time.monotonic() - begun < 30.0
    assert (values[UP], values[UNSENT.name]) == (0, 7)  # the last ones, and that they are old
    source.now += STALE_SECONDS
    assert source.values() == {UP: 0, AGE: KEPT_SECONDS + STALE_SECONDS}
    source.answers.set()
    until(lambda: source.reading.begin() is None)
    assert source.values()[UP] == 1


def test_after_a_slow_reading_the_next_one_comes_later() -> None:
    source = Source()

    def slow() -> Sequence[Sample]:
        source.now += 5.0
        return [UNSENT]

    reading = KeptReading("main", slow, clock=lambda: source.now)
    kept = KeptReadings([reading], patience=60.0)
    list(kept.samples())
    source.now += 99.0
    assert {each.name: each.value for each in kept.samples()}[AGE] == 99.0
    source.now += 2.0
    assert {each.name: each.value for each in kept.samples()}[AGE] == 0.0
