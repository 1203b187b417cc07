"""Machines disagree about the time; the rows are judged by the database's clock alone."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, text, update
from sqlalchemy.orm import Session
from tests.app.lives import A, B, C, Ledger, Life, delivery, write_effect
from tests.resend.watching import watch

from reliable_mq import ReliableMQ
from reliable_mq.database.sql_clock import MEASURED_SECONDS, DatabaseClock
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.message import ReceivedMessage
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.outcomes import CONSUMED, Retry

HOUR = 3600.0


def wrong_by(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


class Producer:
    """A process that only commits messages, on a machine whose clock and stopwatch are ours."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.skew = 0.0
        self.passed = 0.0
        self.mq = ReliableMQ("shop", broker="127.0.0.1:9", database=url, **settings)
        self.mq.topic("orders", groups=["payments"])
        database = self.mq.database
        database.create_tables()
        database.clock = DatabaseClock(
            database.engine, lambda: time.time() + self.skew, lambda: self.passed
        )
        self.questions = 0
        event.listen(database.engine, "before_cursor_execute", self._count)

    def _count(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        self.questions += statement == "SELECT extract(epoch FROM clock_timestamp())"

    def commit(self) -> float:
        """Write a message with a delay and take it back; return what its times are wrong by."""
        engine = self.mq.database.engine
        with engine.connect() as connection, self.mq.transaction(connection) as tx:
            tx.send("orders", {"id": 1}, delay=timedelta(minutes=10))
            wrong = how_wrong(connection)
            connection.rollback()
        return wrong

    async def commit_async(self) -> float:
        async with self.mq.database.async_engine.connect() as connection:
            event.listen(connection.sync_engine, "before_cursor_execute", self._count)
            async with self.mq.transaction(connection) as tx:
                await tx.send("orders", {"id": 1}, delay=timedelta(minutes=10))
                wrong = await connection.run_sync(how_wrong)
                await connection.rollback()
        await self.mq.database.close_async()
        return wrong


def how_wrong(connection: Connection) -> float:
    """Return the most that a time in the only stub is away from what the database's clock says."""
    offsets = {"create_date": 0, "update_date": 0, "resend_time": 5, "deliver_time": 600}
    wrong = (
        f"abs(extract(epoch FROM {name} - clock_timestamp()) - {seconds})"
        for name, seconds in offsets.items()
    )
    found = connection.execute(text(f"SELECT greatest({', '.join(wrong)}) FROM rmq_message_stub"))
    return float(found.scalar_one())


@pytest.fixture(params=["own", "shared"])
def producer(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Producer]:
    made = Producer(postgres_url, relay=request.param)
    yield made
    made.mq.close()


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_a_worker_whose_clock_is_wrong_takes_over_nothing_that_runs(
    postgres_url: str, skew: float
) -> None:
    ledger = Ledger(postgres_url)
    ledger.create(A)
    inside, go_on = threading.Event(), threading.Event()

    def slow(session: Session, message: ReceivedMessage) -> None:
        inside.set()
        go_on.wait(60)
        write_effect(session, message)

    async def scenario() -> None:
        async with (
            Life(postgres_url, None, handler=slow, lease=30.0) as right,
            Life(postgres_url, None, lease=30.0, clock=wrong_by(skew)) as wrong,
        ):
            wrong.database.check_tables()  # as `start` does
            running = asyncio.create_task(right.handle(delivery(A)))
            await asyncio.to_thread(inside.wait, 60)
            (outcome,) = await wrong.handle(delivery(A))
            assert isinstance(outcome, Retry)
            assert outcome.after_seconds is not None
            assert 20 < outcome.after_seconds <= 31
            go_on.set()
            assert await running == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    ledger.database.close()


@pytest.mark.parametrize(("skew", "says"), [(90.0, "s ahead of"), (-90.0, "s behind")])
def test_a_clock_that_is_wrong_is_told_once_and_not_used(
    postgres_url: str, skew: float, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(postgres_url, prefix="rmq_", connections=1)
    passed = [0.0]
    clock = DatabaseClock(database.engine, wrong_by(skew), lambda: passed[0])

    clock.measured_now()
    passed[0] += MEASURED_SECONDS
    now = clock.measured_now()

    assert abs(now - time.time()) < 30
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert re.search(rf"\b(8[0-9]|9[0-9])\.\d {says}", line), line  # the answer may be late
    database.close()


def test_a_clock_that_is_right_is_left_alone(database_url: str) -> None:
    database = Database(database_url, prefix="rmq_", connections=1, local_clock=wrong_by(0.0))

    database.clock.measured_now()

    assert database.clock._ahead == 0.0
    database.close()


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_what_a_producer_commits_first_is_dated_by_the_database(
    producer: Producer, skew: float
) -> None:
    producer.skew = skew

    assert producer.commit() < 60


def test_what_a_producer_in_asyncio_commits_first_is_dated_by_the_database(
    postgres_url: str,
) -> None:
    producer = Producer(postgres_url, relay="shared")
    producer.skew = HOUR

    assert asyncio.run(producer.commit_async()) < 60
    assert producer.questions == 1
    producer.mq.close()


def test_a_producer_asks_what_time_it_is_once_a_minute_and_stays_right(producer: Producer) -> None:
    for _ in range(3):
        assert producer.commit() < 60
    assert producer.questions == 1
    producer.skew = HOUR  # somebody set the machine's clock
    producer.passed = MEASURED_SECONDS

    for _ in range(3):
        assert producer.commit() < 60
    assert producer.questions == 2


def test_who_is_measured_on_a_connection_is_known_to_live_all_the_same(postgres_url: str) -> None:
    """The outbox measures on the caller's connection, where nothing else may be written."""
    database = Database(postgres_url, prefix="rmq_", connections=2, local_clock=wrong_by(HOUR))
    told: list[float] = []
    database.clock.on_measured = lambda ahead, _now: told.append(ahead)
    with database.engine.connect() as connection:
        database.clock.now_on(connection)
    assert told == []

    database.clock.measured_now()

    assert told == [pytest.approx(HOUR, abs=60)]  # the answer may be late
    database.close()


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_a_resend_process_whose_clock_is_wrong_sends_and_removes_what_is_due_and_nothing_else(
    postgres_url: str, tmp_path: Path, skew: float
) -> None:
    # Given a stub that is its relay's, one that is due, and two that were settled, of which one
    # is half an hour too young to go and the other half an hour over it
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path}", database=postgres_url)
    mq.create_tables()
    database, now, half = mq.database, time.time(), HOUR / 2
    stubs = SqlStubs(database.engine, database.stubs)
    old = now - mq.settings.stub_retention_seconds
    young, gone = "D" * 32, C
    with database.engine.begin() as connection:
        for name, lease in ((A, half), (B, -half), (young, 0.0), (gone, 0.0)):
            stub = Stub(seq=0, message_id=name, topic="orders", content=b"{}")
            stubs.insert(connection, [stub], "relay", now, lease)
        for name, settled in ((young, old + half), (gone, old - half)):
            values = {"status": 1, "resend_time": None, "update_date": utc_datetime(settled)}
            of_it = database.stubs.c.message_id == name
            connection.execute(update(database.stubs).where(of_it).values(**values))
    watch(database, until=now)
    database.clock = DatabaseClock(database.engine, wrong_by(skew))

    # When a process looks once whose clock is an hour off
    done = mq.resend_once()["main"]

    # Then it goes by the database's
    assert (done["claimed"], done["sent"], done["removed"]) == (1, 1, 1)
    with database.engine.begin() as connection:
        left = {row.message_id: row.owner for row in connection.execute(database.stubs.select())}
    assert left == {A: "relay", B: None, young: "relay"}
    mq.close()
