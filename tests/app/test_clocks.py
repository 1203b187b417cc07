"""Machines disagree about the time; the rows are judged by the database's clock alone."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session
from tests.app.lives import A, Ledger, Life, delivery, write_effect

from reliable_mq.app.sql_database import Database
from reliable_mq.client.subscription import CONSUMED, Later
from reliable_mq.message import ReceivedMessage

HOUR = 3600.0


def wrong_by(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_a_worker_whose_clock_is_wrong_takes_over_nothing_that_runs(
    postgres_url: str, skew: float
) -> None:
    ledger = Ledger(postgres_url)
    ledger.create(A)
    inside, go_on = threading.Event(), threading.Event()

    def slow(session: Session, message: ReceivedMessage) -> None:
        inside.set()
        go_on.wait(10)
        write_effect(session, message)

    async def scenario() -> None:
        async with (
            Life(postgres_url, None, handler=slow, lease=30.0) as right,
            Life(postgres_url, None, lease=30.0, clock=wrong_by(skew)) as wrong,
        ):
            wrong.database.check_tables()  # as `start` does
            running = asyncio.create_task(right.handle(delivery(A)))
            await asyncio.to_thread(inside.wait, 10)
            (outcome,) = await wrong.handle(delivery(A))
            assert isinstance(outcome, Later)
            assert outcome.after_seconds is not None
            assert 20 < outcome.after_seconds <= 31
            go_on.set()
            assert await running == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    ledger.database.close()


@pytest.mark.parametrize(("skew", "says"), [(90.0, "90.0 s ahead of"), (-90.0, "90.0 s behind")])
def test_a_clock_that_is_wrong_is_told_once_and_not_used(
    postgres_url: str, skew: float, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(postgres_url, prefix="rmq_", connections=1, local_clock=wrong_by(skew))
    clock = database.clock

    clock.measured_now()
    clock._measured_at = None
    now = clock.measured_now()

    assert abs(now - time.time()) < 1
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert says in line
    database.close()


def test_a_clock_that_is_right_is_left_alone(database_url: str) -> None:
    database = Database(database_url, prefix="rmq_", connections=1, local_clock=wrong_by(0.0))

    database.clock.measured_now()

    assert database.clock._ahead == 0.0
    database.close()
