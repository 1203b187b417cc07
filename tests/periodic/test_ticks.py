"""Each tick of a periodic message has its stubs exactly once, whatever clocks and processes do."""

import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session
from tests.periodic.schedulers import HOUR, NOON, Begin, declared, fired, hourly, payloads

from reliable_mq import Tick
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import MessageRefused
from reliable_mq.periodic.thread_periodic import (
    RETRY_SECONDS,
    PeriodicCounts,
    PeriodicSender,
    fire_forever,
)


def test_a_tick_is_fired_once_at_its_time(begin: Begin) -> None:
    life = begin()

    assert life.run(NOON - 60) == PeriodicCounts()
    assert life.sender.next_time == NOON
    assert life.run(NOON - 1) == PeriodicCounts()
    assert life.run(NOON) == PeriodicCounts(ticks=1, messages=1)
    assert life.run(NOON + 1) == PeriodicCounts()

    assert payloads(life.database) == ["28 12:00"]
    assert fired(life.database) == [("28 12:00", 1)]
    (state,) = life.sender.states(NOON + 1)
    assert state.next_tick == datetime.fromtimestamp(NOON + HOUR, UTC)
    assert state.last_tick == datetime.fromtimestamp(NOON, UTC)
    assert (state.fired, state.failures, state.overdue) == (1, 0, None)


def test_no_tick_before_the_first_declaration_is_made_up(begin: Begin) -> None:
    life = begin()

    life.run(NOON + 60)
    life.run(NOON + HOUR)

    assert payloads(life.database) == ["28 13:00"]


def test_after_a_pause_the_newest_missed_tick_is_made_up(begin: Begin) -> None:
    begin().run(NOON - 60)

    later = begin()
    assert later.run(NOON + 5.5 * HOUR) == PeriodicCounts(ticks=1, messages=1, skipped=5)
    later.run(NOON + 6 * HOUR)

    assert payloads(later.database) == ["28 17:00 -5", "28 18:00"]


def test_with_catch_up_every_missed_tick_within_the_limit_is_made_up(begin: Begin) -> None:
    message = declared(hourly, catch_up=timedelta(hours=2, minutes=45))
    begin(message).run(NOON - 60)

    later = begin(message)
    assert later.run(NOON + 5.5 * HOUR) == PeriodicCounts(ticks=3, messages=3, skipped=3)

    assert payloads(later.database) == ["28 15:00 -3", "28 16:00", "28 17:00"]


def test_ticks_that_are_too_late_are_skipped_and_the_log_says_how_many(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    message = declared(hourly, catch_up=timedelta(minutes=1))
    begin(message).run(NOON - 60)

    later = begin(message)
    assert later.run(NOON + 5.5 * HOUR) == PeriodicCounts(skipped=6)

    assert payloads(later.database) == []
    assert "periodic message hourly: 6 missed tick(s) before" in caplog.text


def test_many_missed_ticks_are_made_up_in_several_runs(begin: Begin) -> None:
    message = declared(hourly, "* * * * *", catch_up=timedelta(hours=3))
    begin(message).run(NOON)

    later = begin(message)
    first, second = later.run(NOON + 2 * HOUR + 30), later.run(NOON + 2 * HOUR + 30)

    assert (first.ticks, first.is_full, second.ticks, second.is_full) == (100, True, 20, False)
    assert len(set(payloads(later.database))) == 120


def test_a_function_that_returns_none_sends_nothing_at_this_tick(begin: Begin) -> None:
    def odd_hours(tick: Tick) -> str | None:
        return hourly(tick) if tick.time.hour % 2 else None

    life = begin(declared(odd_hours))
    for hour in range(4):
        life.run(NOON + hour * HOUR - 60)
        life.run(NOON + hour * HOUR)

    assert payloads(life.database) == ["28 13:00", "28 15:00"]
    assert fired(life.database) == [
        *(("28 12:00", 0), ("28 13:00", 1), ("28 14:00", 0), ("28 15:00", 1))
    ]


def test_a_generator_sends_each_payload_and_options_are_functions_of_it(begin: Begin) -> None:
    def three() -> Iterator[dict[str, int]]:
        yield from ({"number": number} for number in range(1200))

    options = {"key": lambda payload: payload["number"], "tag": "count"}
    life = begin(declared(three, options=options))
    life.run(NOON - 1)

    assert life.run(NOON) == PeriodicCounts(ticks=1, messages=1200)
    stub = life.database.stubs.c
    with life.database.engine.connect() as connection:
        rows = connection.execute(select(stub.message_key, stub.tag).order_by(stub.seq)).all()
    assert [tuple(row) for row in rows] == [(str(number), "count") for number in range(1200)]


def test_a_list_is_one_payload(begin: Begin) -> None:
    life = begin(declared(lambda: [1, 2], name="listed"))
    life.run(NOON - 1)
    life.run(NOON)

    assert payloads(life.database) == ["[1,2]"]


def test_what_the_function_does_with_its_session_is_one_commit_with_the_messages(
    begin: Begin,
) -> None:
    fails = [True]

    def counted(session: Session, tick: Tick) -> str:
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": hourly(tick)})
        if fails.pop() if fails else False:
            raise ValueError("not today")
        return hourly(tick)

    life = begin(declared(counted))
    with life.database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (id TEXT)"))
    life.run(NOON - 1)
    assert life.run(NOON) == PeriodicCounts(failed=1)
    assert _effects(life.database) == []

    assert life.run(NOON + RETRY_SECONDS[0]) == PeriodicCounts(ticks=1, messages=1)

    assert _effects(life.database) == payloads(life.database) == ["28 12:00"]


def _effects(database: Database) -> list[str]:
    with database.engine.connect() as connection:
        return list(connection.execute(text("SELECT id FROM effects")).scalars())


def test_a_function_may_not_end_its_transaction(begin: Begin) -> None:
    def hasty(session: Session) -> str:
        session.commit()
        return "sent"

    life = begin(declared(hasty))
    life.run(NOON - 1)

    assert life.run(NOON) == PeriodicCounts(failed=1)
    assert payloads(life.database) == []
    (state,) = life.sender.states(NOON)
    assert "must not commit or roll back its session" in (state.note or "")


def test_a_function_that_fails_is_tried_again_and_stops_no_other(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def broken(tick: Tick) -> str:
        calls.append(hourly(tick))
        raise ValueError("no data")

    life = begin(declared(broken), declared(hourly))
    life.run(NOON - 1)
    at, waits = NOON, []
    for _ in range(6):
        assert life.run(at).failed == 1
        due = life.ticks.rows()["broken"].retry_time.timestamp()
        waits.append(due - at)
        assert life.run(due - 0.5).failed == 0
        at = due

    assert waits == [1.0, 5.0, 15.0, 60.0, 60.0, 60.0]
    assert payloads(life.database) == ["28 12:00"]
    assert calls == ["28 12:00"] * 6
    (state, _) = life.sender.states(at)
    assert (state.failures, state.note) == (6, "ValueError: no data")
    assert caplog.text.count("Traceback") == 1
    assert "tick 2026-11-28T12:00:00+00:00 failed 6 time(s), again in 60 s" in caplog.text


def test_a_newer_tick_replaces_one_that_fails(begin: Begin) -> None:
    def fails_at_noon(tick: Tick) -> str:
        if tick.time.hour == 12:
            raise ValueError("noon")
        return hourly(tick)

    life = begin(declared(fails_at_noon))
    life.run(NOON - 1)
    life.run(NOON)

    life.run(NOON + HOUR)

    assert payloads(life.database) == ["28 13:00 -1"]
    (state,) = life.sender.states(NOON + HOUR)
    assert (state.failures, state.note) == (0, None)


def test_a_huge_payload_is_refused_and_the_tick_is_not_lost(begin: Begin) -> None:
    size = [5 * 1024 * 1024]

    def huge() -> bytes:
        return b"x" * size[0]

    life = begin(declared(huge))
    life.run(NOON - 1)
    assert life.run(NOON) == PeriodicCounts(failed=1)
    (state,) = life.sender.states(NOON)
    assert (state.note or "").startswith(f"{MessageRefused.__name__}: the payload is 5242880 bytes")

    size[0] = 1024 * 1024
    assert life.run(NOON + 1) == PeriodicCounts(ticks=1, messages=1)


def test_a_naive_time_of_a_message_is_refused(begin: Begin) -> None:
    options = {"deliver_at": datetime(2026, 11, 28, 13)}  # noqa: DTZ001 - the fault
    life = begin(declared(hourly, options=options))
    life.run(NOON - 1)

    assert life.run(NOON) == PeriodicCounts(failed=1)

    (state,) = life.sender.states(NOON)
    assert "time zone" in (state.note or "")


@pytest.mark.parametrize(
    "raised", [SystemExit(1), RuntimeError("x" * 5000 + "\0"), StopIteration()]
)
def test_whatever_a_function_raises_is_a_failed_try(begin: Begin, raised: BaseException) -> None:
    def exits() -> str:
        raise raised

    life = begin(declared(exits), declared(hourly))
    life.run(NOON - 1)

    assert life.run(NOON) == PeriodicCounts(ticks=1, messages=1, failed=1)


def test_a_fault_of_the_database_is_told_once_and_its_end_once(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a table that is missing for three turns, then two lines say so."""
    caplog.set_level(logging.INFO, "reliable_mq")
    life = begin()
    turns = iter(["missing", "missing", "missing", "there", "there"])
    stopped = threading.Event()

    class Sender:
        next_time = None

        def run_once(self, _now: float) -> PeriodicCounts:
            turn = next(turns, None)
            if turn is None:
                stopped.set()
            if turn == "missing":
                with life.database.engine.connect() as connection:
                    connection.execute(text("SELECT * FROM no_such_table"))
            return PeriodicCounts()

    fire_forever(cast("PeriodicSender", Sender()), stopped, interval=0.0)

    told = [vars(record) for record in caplog.records if hasattr(record, "event")]
    assert [each["event"] for each in told] == ["operation_failing", "operation_works"]
    assert {each["what"] for each in told} == {"periodic messages"}
