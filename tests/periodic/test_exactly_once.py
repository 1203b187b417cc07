"""Each tick has its messages once: many schedulers, clocks that jump, deaths at every step."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.app.kill_switch import Killed, KillSwitch
from tests.periodic.schedulers import (
    DAY,
    HOUR,
    NOON,
    Begin,
    SchedulerLife,
    declared,
    fired,
    hourly,
    payloads,
)
from tests.steps import last_steps
from tests.waiting import until

from reliable_mq.periodic import sql_ticks
from reliable_mq.periodic.thread_periodic import PeriodicCounts

STEPS_MAX = 200


def test_many_schedulers_fire_a_tick_once(begin: Begin) -> None:
    message = declared(hourly, "* * * * *")
    lives = [begin(message) for _ in range(6)]
    lives[0].run(NOON)

    def wait_until_fired(minute: int) -> None:
        until(lambda: len(payloads(lives[0].database)) == minute)

    with ThreadPoolExecutor(len(lives)) as pool:
        for minute in range(1, 11):
            now = NOON + 60 * minute
            for counts in list(pool.map(lambda life, now=now: life.run(now), lives)):
                assert counts.failed == 0
            wait_until_fired(minute)

    found = payloads(lives[0].database)
    assert sorted(found) == [f"28 12:{minute:02}" for minute in range(1, 11)]


def test_while_a_function_runs_another_scheduler_does_not_wait_for_it(begin: Begin) -> None:
    is_running, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        is_running.set()
        assert may_end.wait(60)
        return "slow"

    message = declared(slow)
    first, second = begin(message), begin(message)
    if first.database.dialect == "sqlite":
        may_end.set()  # there, the lock of a transaction is that of the file
    first.run(NOON - 1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(first.run, NOON)
        assert is_running.wait(60)

        assert second.run(NOON) == PeriodicCounts()

        may_end.set()
        assert running.result(60).ticks == 1
    assert second.run(NOON + 2) == PeriodicCounts()
    assert payloads(first.database) == ["slow"]


def test_a_failed_try_says_nothing_of_a_tick_that_another_one_has_fired_since(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a try that fails, then its lock ends before the failure is recorded."""

    def fails() -> str:
        raise ValueError("here only")

    first, second = begin(declared(fails, name="hourly")), begin(declared(hourly))
    first.run(NOON - 1)
    record = first.ticks.fail

    def late(*words: Any) -> bool:
        assert second.run(NOON).ticks == 1
        return record(*words)

    monkeypatch.setattr(first.ticks, "fail", late)
    assert first.run(NOON).failed == 1

    (state,) = second.sender.states(NOON)
    assert (state.fired, state.failures, state.note) == (1, 0, None)
    assert "failed 1 time(s), again in 0 s: ValueError: here only" in caplog.text
    assert second.run(NOON + HOUR).ticks == 1, "no wait of the failure delays the next tick"


def test_a_row_that_is_locked_keeps_the_schedule_of_the_newer_release(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given two releases, when the earlier one finds the row locked, then no tick is lost."""
    earlier, later = begin(declared(hourly)), begin(declared(hourly, "0,30 * * * *"))
    earlier.run(NOON - 60)
    later.run(NOON - 30)
    monkeypatch.setattr(earlier.ticks, "lock", lambda _connection, _name: None)
    earlier.run(NOON)
    monkeypatch.undo()

    earlier.run(NOON + 1)

    assert payloads(later.database) == ["28 12:00"]
    assert later.ticks.rows()["hourly"].schedule == "0,30 * * * * (UTC)"


def test_a_clock_that_jumps_back_fires_no_tick_again(begin: Begin) -> None:
    life = begin()
    for hour in range(-1, 4):
        life.run(NOON + hour * HOUR)
    before = payloads(life.database)
    assert len(before) == 4

    for hour in range(6):
        life.run(NOON + hour * HOUR + 1)

    assert payloads(life.database) == [*before, "28 16:00", "28 17:00"]


@pytest.mark.parametrize("ahead", [2 * HOUR, 30 * DAY, 3650 * DAY])
def test_a_clock_that_was_ahead_costs_no_tick_when_it_is_right_again(
    begin: Begin, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    life = begin()
    life.run(NOON - 60)
    life.run(NOON + ahead)  # fires the newest tick, which is one of the future
    jumped = len(payloads(life.database))

    restarted = begin()
    for now in (NOON + 60, NOON + HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR):
        life.run(now)
        restarted.run(now)

    found = [each.partition(" -")[0] for each in payloads(life.database)]
    assert jumped == 1
    assert "the clock was set back" in caplog.text
    wanted = ["28 13:00", "28 14:00", "28 15:00"]
    assert sorted(each for each in found if each in wanted) == wanted


def test_a_changed_schedule_begins_when_it_is_declared(begin: Begin) -> None:
    begin(declared(hourly, "0 3 * * *")).run(NOON - DAY)

    later = begin(declared(hourly, "0 4 * * *"))
    later.run(NOON)
    assert payloads(later.database) == []

    later.run(NOON + 16 * HOUR)
    assert payloads(later.database) == ["29 04:00"]


def test_only_the_newest_fired_ticks_are_remembered(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_ticks, "TICKS_KEPT", 3)
    life = begin()

    for hour in range(-1, 6):
        life.run(NOON + hour * HOUR)

    assert [tick for tick, _ in fired(life.database)] == ["28 15:00", "28 16:00", "28 17:00"]


def test_a_row_that_a_person_removed_is_made_again(begin: Begin) -> None:
    life = begin()
    life.run(NOON - 60)
    with life.database.engine.begin() as connection:
        connection.execute(life.database.periodic.delete())

    life.run(NOON)
    life.run(NOON + 2)
    life.run(NOON + HOUR)

    assert payloads(life.database) == ["28 13:00"]


def test_two_applications_in_one_database_have_their_own_ticks(begin: Begin) -> None:
    life = begin()
    life.run(NOON - 60)
    other = sql_ticks.SqlTicks(
        life.database.engine, life.database.periodic, life.database.periodic_ticks, "other"
    )
    other.declare("hourly", "0 * * * * (UTC)", NOON - 60)

    life.run(NOON)

    assert life.ticks.rows()["hourly"].fired == 1
    assert other.rows()["hourly"].fired == 0


@pytest.mark.parametrize("catch_up", [None, timedelta(hours=5)])
def test_each_tick_has_its_message_once_whichever_step_is_the_last(
    database_url: str, begin: Begin, catch_up: timedelta | None
) -> None:
    message = declared(hourly, catch_up=catch_up)
    watcher = begin(message)
    watcher.run(NOON - 60)
    wanted: list[str] = []
    for place, step in enumerate(last_steps(STEPS_MAX, 2)):
        now = NOON + place * HOUR
        switch = KillSwitch(step)
        mortal = SchedulerLife(database_url, message)
        switch.watch(mortal.database.engine)
        with suppress(Killed):
            mortal.run(now)
        mortal.close()

        survivor = begin(message)
        survivor.run(now + 1)
        wanted.append(datetime.fromtimestamp(now, UTC).strftime("%d %H:%M"))
        assert payloads(survivor.database) == wanted, switch.names
        if not switch.dead:
            assert len(switch.names) >= 8
            return
    raise AssertionError("a run that never comes through alive")
