"""One line when something is lost, one when it is back, and no more."""

import logging
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.errors import ConnectionLost, NoRoute
from reliable_mq.telemetry.outages import SAID_AGAIN_SECONDS, Outages, level_of


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records]


def test_what_is_lost_is_told_once_and_its_return_once() -> None:
    outages = Outages()
    assert [outages.lose("a", now) for now in (0.0, 1.0, 500.0)] == [True, False, False]
    assert outages.find("a", 600.0) == 600.0
    assert outages.find("a", 601.0) is None


def test_what_flaps_is_told_once_a_minute() -> None:
    outages = Outages()
    told = sum(
        outages.lose("a", now) + (outages.find("a", now + 0.5) is not None) for now in range(180)
    )
    assert told == 2 * 3


def test_a_loss_that_was_not_told_is_told_when_it_lasts() -> None:
    outages = Outages()
    outages.lose("a", 0.0)
    outages.find("a", 1.0)
    assert not outages.lose("a", 2.0)
    assert outages.lose("a", SAID_AGAIN_SECONDS)
    assert outages.find("a", SAID_AGAIN_SECONDS + 8.0) == SAID_AGAIN_SECONDS + 6.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 100.0)), max_size=60))
def test_each_told_return_follows_a_told_loss(steps: list[tuple[bool, float]]) -> None:
    outages, now, is_told_lost = Outages(), 0.0, False
    for loses, pause in steps:
        now += pause
        if loses:
            is_told_lost = outages.lose("a", now) or is_told_lost
        elif outages.find("a", now) is not None:
            assert is_told_lost
            is_told_lost = False
        else:
            assert not is_told_lost


def test_many_peers_that_come_and_go_are_not_remembered_for_ever() -> None:
    outages = Outages()
    for number in range(5000):
        outages.lose(f"peer {number}", float(number))
    assert len(outages._lost) <= 1000
    assert len(outages._told_at) <= 1000


def test_a_database_that_is_away_is_told_once_for_all_its_users(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "reliable_mq")
    folder = tmp_path / "away"
    database = Database(f"sqlite:///{folder / 'shop.db'}", prefix="rmq_", connections=2)
    faults = [FaultLog(logging.getLogger("reliable_mq.test"), name) for name in ("relay", "alerts")]
    for fault in faults * 3:
        with pytest.raises(OperationalError) as failed, database.engine.connect():
            pass
        fault.log_fault(failed.value)
    shown = [record for record in caplog.records if record.levelno > logging.DEBUG]
    assert [getattr(record, "event", "") for record in shown] == ["database_lost"]
    assert all(record.exc_info is None for record in caplog.records)

    folder.mkdir()
    with database.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    assert events(caplog)[-1] == "database_back"
    database.engine.dispose()


def test_a_pool_without_a_free_connection_is_told_by_who_waits_for_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = FaultLog(logging.getLogger("reliable_mq.test"), "relay")
    faults.log_fault(NoConnectionFree("QueuePool limit"))
    faults.log_fault(NoConnectionFree("QueuePool limit"))
    assert events(caplog) == ["operation_failing"]
    caplog.set_level(logging.INFO, "reliable_mq")
    faults.note_success()
    faults.note_success()
    assert events(caplog) == ["operation_failing", "operation_works"]
    for _ in range(5):  # it fails and works again and again: one pair of lines a minute
        faults.log_fault(NoConnectionFree("QueuePool limit"))
        faults.note_success()
    assert events(caplog) == ["operation_failing", "operation_works"]


def test_a_bug_has_its_traceback_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog(logging.getLogger("reliable_mq.test"), "relay")
    for _ in range(5):
        faults.log_fault(ZeroDivisionError("a bug"))
    (record,) = caplog.records
    assert record.exc_info is not None


def test_a_busy_database_is_told_by_who_waits(caplog: pytest.LogCaptureFixture) -> None:
    cause = sqlite3.OperationalError("database is locked")
    cause.sqlite_errorcode = sqlite3.SQLITE_BUSY
    faults = FaultLog(logging.getLogger("reliable_mq.test"), "retention")
    faults.log_fault(OperationalError("INSERT", {}, cause))
    assert caplog.messages == ["retention: the database is busy: database is locked"]


class Denied(Exception):
    """An error of a driver of PostgreSQL."""

    sqlstate = "42501"


@pytest.mark.parametrize(
    "cause",
    [Denied("permission denied for table stubs"), Exception(1142, "UPDATE command denied to user")],
)
def test_a_right_that_is_missing_is_one_line_that_names_the_doctor(
    caplog: pytest.LogCaptureFixture, cause: Exception
) -> None:
    faults = FaultLog(logging.getLogger("reliable_mq.test"), "resend")
    for _ in range(3):
        faults.log_fault(ProgrammingError("UPDATE stubs", {}, cause))

    (record,) = caplog.records
    assert record.exc_info is None
    said = record.getMessage()
    assert said.startswith("resend: the account lacks a right: ")
    assert "denied" in said
    assert "reliable-mq doctor --app MODULE:OBJECT has the statement that grants it" in said
    assert "\n" not in said


def test_only_a_lost_connection_was_told_by_it() -> None:
    assert level_of(ConnectionLost("x")) == logging.DEBUG
    assert level_of(NoRoute("no topic")) is None
