"""A clock that jumps makes nothing old: retention waits, and tells a person (P7, P4)."""

import logging
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import insert, select
from tests.resend.retained_ledgers import CONFIRMED, Ledgers

from reliable_mq import ReliableMQ
from reliable_mq.database.sql_clock import DatabaseClock
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.database.sql_watched_time import SqlWatchedTime
from reliable_mq.retention.retention import Retention, RetentionCounts
from reliable_mq.retention.sql_keeping import retention_ledgers
from reliable_mq.retention.sql_retention import SqlRetention
from reliable_mq.watched_time import ClockReading

DAY = 86_400.0
NOW = 20_000 * DAY


class Machine:
    """A database on a machine whose clock may be wrong. `passed` is the time that really passed."""

    def __init__(self, url: str) -> None:
        self.rows = Ledgers(url)
        self.rows.database.create_tables()
        self.passed, self.ahead, self.run = 0.0, 0.0, "first run"

    @property
    def now(self) -> float:
        return NOW + self.passed + self.ahead

    def place_order(self, name: str) -> None:
        """Let a message be settled now, by the machine's clock."""
        self.rows.stub(name, CONFIRMED, settled=self.now)
        self.rows.log(name, consumed=self.now)

    def start(self, look: Callable[[], ClockReading] | None = None) -> Retention:
        """Return retention in a process that starts now."""
        return Retention(
            retention_ledgers(self.rows.database),
            owner="one",
            stub_retention=7 * DAY,
            log_retention=30 * DAY,
            look=look or (lambda: ClockReading(self.now, self.passed, self.run)),
        )

    def left(self) -> tuple[list[str], list[str]]:
        return self.rows.names("stubs"), self.rows.names("logs")


@pytest.fixture
def machine(database_url: str) -> Iterator[Machine]:
    made = Machine(database_url)
    yield made
    made.rows.database.close()


def test_a_clock_that_is_forty_days_ahead_for_a_while_takes_no_stub_and_no_log(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.place_order("a")
    retention = machine.start()
    assert retention.run_once(machine.now) == RetentionCounts()

    machine.ahead = 40 * DAY
    for _ in range(20):
        machine.passed += 5.0
        counts = retention.run_once(machine.now)
        assert (counts.stubs, counts.logs) == (0, 0)
        assert abs(counts.held - 40 * DAY) < 1.0
    machine.ahead = 0.0
    machine.passed += 5.0
    assert retention.run_once(machine.now) == RetentionCounts()

    assert machine.left() == (["a"], ["a"])
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(told) == 2
    assert told[0] == (
        "retention: the database's clock was 40 days further than the time that passed; old rows "
        "are kept until 2024-11-20 00:00 UTC. If the clock is wrong, set it. If the machine was "
        "off, there is nothing to do."
    )
    assert told[1] == (
        "retention: the database's clock was set back by 40 days. Old rows are kept as long as "
        "before."
    )


def test_what_is_old_by_both_clocks_goes_while_one_is_wrong(machine: Machine) -> None:
    machine.place_order("a")
    retention = machine.start()
    retention.run_once(machine.now)
    machine.passed += 7.5 * DAY
    machine.ahead = 40 * DAY
    assert retention.run_once(machine.now).stubs == 1
    assert machine.left() == ([], ["a"])


def test_a_wait_for_the_database_is_no_clock_that_jumped(
    machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a database that every second time lets who takes the duty wait for another's lock
    database, waits = machine.rows.database, cycle([0.0, 6.0])
    clock = DatabaseClock(database.engine, lambda: machine.now, lambda: machine.passed)
    take = SqlRetention.take_duty

    def takes_long(ledgers: SqlRetention, now: float, owner: str, lease: float) -> bool:
        machine.passed += next(waits)
        return take(ledgers, now, owner, lease)

    monkeypatch.setattr(SqlRetention, "take_duty", takes_long)
    retention = machine.start(clock.reading)

    for _ in range(6):
        machine.passed += 60.0
        retention.run_once(clock.now())

    assert caplog.messages == []
    with database.engine.begin() as connection:
        known = SqlWatchedTime(database.watched_time).load(connection)
    assert known is not None
    assert len(known.stretches) == 1


def test_each_batch_of_one_run_asks_what_time_it_is_and_all_that_went_is_counted(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path}", database=database_url)
    mq.create_tables()
    passed, began = [0.0], time.time()
    nows: list[int] = []
    mq.database.clock = DatabaseClock(
        mq.database.engine, lambda: began + passed[0], lambda: passed[0]
    )

    def removes_long(_retention: Retention, now: float) -> RetentionCounts:
        nows.append(round(now - began))
        passed[0] += 6.0
        counts = RetentionCounts(is_full=len(nows) < 3)
        return structs.replace(counts, **dict.fromkeys(counts.rows, 1))

    monkeypatch.setattr(Retention, "run_once", removes_long)

    assert mq.resend_once()["main"]["removed"] == 18
    assert nows == [0, 6, 12]
    mq.close()


@pytest.mark.parametrize("is_same_run", [True, False])
def test_a_process_that_starts_under_a_wrong_clock_takes_nothing(
    machine: Machine, is_same_run: bool
) -> None:
    machine.place_order("a")
    machine.start().run_once(machine.now)
    machine.ahead = 40 * DAY
    machine.passed += 120.0
    if not is_same_run:
        machine.run, machine.passed = "second run", 30.0
    machine.place_order("b")  # somebody else believes the clock

    for _ in range(10):
        machine.passed += 60.0
        counts = machine.start().run_once(machine.now)
        assert (counts.stubs, counts.logs) == (0, 0)
    assert machine.left() == (["a", "b"], ["a", "b"])


def test_the_first_look_of_all_believes_the_newest_row(machine: Machine) -> None:
    machine.place_order("a")
    machine.ahead = 40 * DAY
    counts = machine.start().run_once(machine.now)
    assert (counts.stubs, counts.logs) == (0, 0)
    assert counts.held > 30 * DAY


def test_a_clock_that_stays_where_it_is_is_believed_after_the_window(machine: Machine) -> None:
    machine.place_order("a")
    machine.start().run_once(machine.now)
    machine.run, machine.ahead = "after a month without power", 31 * DAY
    machine.place_order("b")
    removed = []
    for day in range(9):
        counts = machine.start().run_once(machine.now)
        removed.append((day, counts.stubs, counts.logs))
        machine.passed += DAY
    assert [each for each in removed if each[1] or each[2]] == [(7, 1, 0), (8, 1, 0)]
    assert machine.rows.names("logs") == ["a", "b"]


def test_results_of_calls_and_closed_escalations_wait_too(machine: Machine) -> None:
    database, at = machine.rows.database, utc_datetime(machine.now)
    call: dict[str, Any] = {
        "scope": "s",
        "key_digest": "d",
        "call_key": "k",
        "state": 1,
        "attempt": 1,
    }
    call |= {"in_doubt": False, "create_date": at, "expire_date": utc_datetime(NOW + DAY)}
    closed: dict[str, Any] = {"kind": "stuck", "message_id": "a", "topic": "t", "reason": "r"}
    closed |= {"consumer_group": "", "create_date": at, "close_date": at}
    with database.engine.begin() as connection:
        connection.execute(insert(database.calls), call)
        connection.execute(insert(database.escalations), closed)
    retention = machine.start()
    retention.run_once(machine.now)
    machine.ahead = 40 * DAY
    assert retention.run_once(machine.now).calls == 0
    with database.engine.begin() as connection:
        assert len(connection.execute(select(database.escalations)).all()) == 1
    machine.ahead, machine.passed = 0.0, 31 * DAY
    counts = retention.run_once(machine.now)
    assert (counts.calls, counts.escalations) == (1, 1)


def test_a_duty_that_was_taken_under_a_wrong_clock_is_free_when_its_owner_is_dead(
    machine: Machine,
) -> None:
    machine.ahead = 40 * DAY
    assert retention_ledgers(machine.rows.database).take_duty(machine.now, "dies", 60.0)
    machine.ahead = 0.0
    assert machine.start().run_once(machine.now + 120.0).has_duty
