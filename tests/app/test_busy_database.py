"""A transaction that loses against another one is nobody's fault: it costs no attempt."""

import asyncio
import logging
import sqlite3
import threading
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery, write_effect

from reliable_mq.consume.retry_decider import BUSY_IN_A_ROW_MAX
from reliable_mq.database.sql_faults import FaultLog, is_database_busy, is_database_down
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Reject, Retry

LAST_CHANCE: dict[str, Any] = {"max_attempts": 1, "lease": LONG}


@pytest.mark.parametrize("log_receipt", [False, True])
def test_the_victim_of_a_deadlock_is_no_dead_letter_though_it_had_one_attempt(
    postgres_url: str, redis_url: str, log_receipt: bool
) -> None:
    ledger = Ledger(postgres_url)
    ledger.create(A, B)
    with ledger.database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id TEXT PRIMARY KEY, sum INTEGER)"))
        connection.execute(text("INSERT INTO accounts VALUES ('a', 0), ('b', 0)"))
    both_hold_one = threading.Barrier(2)
    calls: list[str] = []

    def transfer(session: Session, message: ReceivedMessage) -> None:
        for each in "ab" if message.message_id == A else "ba":
            session.execute(text("UPDATE accounts SET sum = sum + 1 WHERE id = :id"), {"id": each})
            if len(calls) < 2:
                calls.append(message.message_id)
                both_hold_one.wait(60)
        write_effect(session, message)

    async def scenario() -> None:
        options = {**LAST_CHANCE, "log_receipt": log_receipt}
        async with Life(postgres_url, redis_url, handler=transfer, **options) as life:
            first = await asyncio.gather(*(life.handle(delivery(each)) for each in (A, B)))
            ((victim, (later,)),) = [
                (name, ended)
                for name, ended in zip((A, B), first, strict=True)
                if ended != [CONSUMED]
            ]
            assert isinstance(later, Retry)
            assert (later.counts, later.after_seconds) == (False, 0.05)
            assert await life.handle(delivery(victim)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A, B]
    assert ledger.logs() == {("payments", each): (1, 1) for each in (A, B)}
    ledger.database.close()


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_loses_against_other_transactions_may_lose_once_more_than_it_has_attempts(
    postgres_url: str, redis: str | None, state: str, batch: int, is_async: bool
) -> None:
    ledger = Ledger(postgres_url)
    ledger.create(A, B, C)
    lost = text(f"DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '{state}'; END $$")
    calls: list[str] = []

    def contended(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        calls.append(message.message_id)
        if calls.count(B) < 3 and message.message_id == B:
            session.execute(lost)

    async def contended_async(session: AsyncSession, message: ReceivedMessage) -> None:
        await session.run_sync(contended, message)

    async def scenario() -> None:
        handler = contended_async if is_async else contended
        async with Life(postgres_url, redis, handler=handler, batch=batch, **LAST_CHANCE) as life:
            names = (A, B, C) if batch > 1 else (B,)
            assert await life.until_settled(*map(delivery, names)) == [CONSUMED] * len(names)

    asyncio.run(scenario())

    assert ledger.logs()["payments", B] == (1, 1)
    ledger.database.close()


@pytest.mark.parametrize("log_receipt", [False, True])
def test_a_handler_that_is_in_its_own_way_for_ever_uses_its_attempts_up(
    tmp_path: Any, redis: str | None, log_receipt: bool
) -> None:
    """It asks a second connection for the lock that its own session holds."""
    url = f"sqlite:///{tmp_path / 'application.db'}"
    ledger = Ledger(url)
    ledger.create(A)
    second = create_engine(url, connect_args={"timeout": 0, "isolation_level": None})

    def stuck(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        with second.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    async def scenario() -> list[Any]:
        options = {**LAST_CHANCE, "log_receipt": log_receipt}
        async with Life(url, redis, handler=stuck, **options) as life:
            return [(await life.handle(delivery(A)))[0] for _ in range(BUSY_IN_A_ROW_MAX + 1)]

    *postponed, last = asyncio.run(scenario())

    assert {each.counts for each in postponed} == {False}
    waits = [each.after_seconds for each in postponed]
    assert waits == sorted(waits)
    assert waits[-1] == 1.0
    assert isinstance(last, Reject)
    assert "database is locked" in last.reason
    assert ledger.logs() == {("payments", A): (0, 1)}
    second.dispose()
    ledger.database.close()


def test_a_locked_sqlite_file_is_busy_and_not_away(tmp_path: Any) -> None:
    url = make_url(f"sqlite:///{tmp_path / 'x.db'}")
    holder = sqlite3.connect(url.database or "", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    engine = create_engine(url, connect_args={"timeout": 0, "isolation_level": None})

    with pytest.raises(DBAPIError) as caught, engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    assert (is_database_busy(caught.value), is_database_down(caught.value)) == (True, False)
    holder.close()
    engine.dispose()


def test_a_table_that_vanishes_under_a_worker_is_one_line_and_not_a_flood(
    database_url: str, ledger: Ledger, redis: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Life(database_url, redis, lease=LONG) as life:
            ledger.database.logs.drop(ledger.database.engine)
            for _ in range(5):
                for outcome in await life.handle(*map(delivery, (A, B, C))):
                    assert isinstance(outcome, Retry)
                    assert not outcome.counts

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())

    told = [each for each in caplog.records if each.levelno >= logging.WARNING]
    (line,) = told
    assert "its messages wait: a table is missing" in line.getMessage()
    assert "rmq_consume_log" in line.getMessage()
    assert line.exc_info is None


def test_what_may_be_a_bug_is_told_once_a_minute_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    teller = FaultLog(logging.getLogger("test"), "the relay tries again")

    for said_of in ("a bug", "a bug", "another"):
        teller.log_fault(ValueError(said_of))

    said = [each.getMessage() for each in caplog.records]
    assert said == ["the relay tries again: a bug", "the relay tries again: another"]
    assert all(each.exc_info for each in caplog.records)
