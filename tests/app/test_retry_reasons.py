"""Why an attempt had no effect is kept, and each consumer has its own waits and limits."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import select
from sqlalchemy.orm import Session
from tests.app.kill_switch import Killed, KillSwitch
from tests.app.lives import LONG, A, B, Ledger, Life, delivery, write_effect
from tests.steps import last_steps
from tests.waiting import until

from reliable_mq import ReceivedMessage, ReliableMQ, Retry
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import UsageError
from reliable_mq.escalate.timeline import MessageHistory, timeline
from reliable_mq.idempotency.business_key import business_key
from reliable_mq.idempotency.key_reading import KeyReader
from reliable_mq.outcomes import CONSUMED, Reject


def log_row(database: Database, message_id: str = A) -> dict[str, Any]:
    """Return the row of a message in the consume log."""
    table = database.logs
    with database.engine.connect() as connection:
        row = connection.execute(select(table).where(table.c.message_id == message_id)).one()
    return dict(row._mapping)


def told(row: dict[str, Any]) -> list[str]:
    """Return what `stub show` tells of a row of the consume log."""
    return [each.what for each in timeline(MessageHistory(logs=[row]))]


def ask_bank() -> None:
    raise ConnectionError("bank is closed")


def busy(message: ReceivedMessage) -> None:
    try:
        ask_bank()
    except ConnectionError as error:
        raise Retry(0.01, reason="the bank is busy", counts=False) from error


def test_a_retry_that_does_not_count_keeps_its_reason_and_its_cause(
    database_url: str, ledger: Ledger, redis: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with Life(database_url, redis, handler=busy, lease=LONG) as life:
            for _ in range(3):
                assert await life.handle(delivery(A)) == [Retry(0.01, counts=False)]

    asyncio.run(scenario())

    why = "the bank is busy; ConnectionError: bank is closed"
    row = log_row(ledger.database)
    assert (row["state"], row["attempt"], row["failure"], row["note"]) == (0, 0, why, None)
    assert f"again in 0.01 s: {why}" in caplog.text
    assert told(row).count(f"attempt 1 was postponed and does not count: {why}") == 3
    assert told(row)[-1] == "no attempt counted yet; not tried again before this time"


def test_after_it_the_message_is_consumed_as_its_first_attempt(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    seen: list[tuple[int, bool]] = []

    def second_time_lucky(session: Session, message: ReceivedMessage) -> None:
        seen.append((message.reconsume_times, message.in_doubt))
        if len(seen) == 1:
            raise Retry(0.01, reason="later", counts=False)
        write_effect(session, message)

    async def scenario() -> None:
        async with Life(database_url, redis, handler=second_time_lucky, lease=LONG) as life:
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert seen == [(0, False), (0, False)]
    row = log_row(ledger.database)
    assert (row["state"], row["attempt"], row["failure"]) == (1, 1, "later")
    assert told(row)[-2:] == [
        "attempt 1 was postponed and does not count: later",
        "consumed, attempt 1",
    ]


def test_a_retry_without_a_reason_writes_nothing_more(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    def again(message: ReceivedMessage) -> Retry:
        return Retry(0.01, counts=False)

    async def scenario() -> None:
        async with Life(database_url, redis, handler=again, lease=LONG) as life:
            assert await life.handle(delivery(A)) == [Retry(0.01, counts=False)]

    asyncio.run(scenario())

    # Without Redis, each attempt begins with a row.
    assert ledger.logs() == ({} if redis else {("payments", A): (0, 0)})


@pytest.mark.parametrize("options", [{}, {"log_receipt": True}, {"batch": 2}], ids=str)
def test_a_failed_attempt_keeps_its_error_in_every_mode(
    database_url: str, ledger: Ledger, redis: str | None, options: dict[str, Any]
) -> None:
    def fails(message: ReceivedMessage) -> None:
        raise ValueError("no stock\0")

    async def scenario() -> None:
        async with Life(database_url, redis, handler=fails, lease=LONG, **options) as life:
            await life.handle(*map(delivery, (A, B)[: options.get("batch", 1)]))

    asyncio.run(scenario())

    row = log_row(ledger.database)
    assert (row["attempt"], row["failure"], row["note"]) == (1, "ValueError: no stock\\x00", None)
    assert told(row)[-2:] == [
        "attempt 1 failed: ValueError: no stock\\x00",
        "attempt 1 failed; not tried again before this time",
    ]


@pytest.mark.parametrize("options", [{"log_receipt": True}, {"batch": 2}], ids=str)
def test_a_reason_that_does_not_count_is_kept_in_every_mode(
    database_url: str, ledger: Ledger, redis: str | None, options: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with Life(database_url, redis, handler=busy, lease=LONG, **options) as life:
            await life.handle(*map(delivery, (A, B)[: options.get("batch", 1)]))

    asyncio.run(scenario())

    row = log_row(ledger.database)
    assert row["attempt"] == 0
    assert row["failure"] == "the bank is busy; ConnectionError: bank is closed"


def test_with_business_keys_the_reason_stays_with_the_message(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    reader = KeyReader(lambda _payload, message: business_key(message.message_id))

    async def scenario() -> None:
        async with Life(database_url, redis, handler=busy, lease=LONG, read_key=reader) as life:
            assert await life.handle(delivery(A)) == [Retry(0.01, counts=False)]

    asyncio.run(scenario())

    assert log_row(ledger.database)["failure"].startswith("the bank is busy")


def test_the_last_attempt_keeps_its_reason_beside_the_note(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    def never(message: ReceivedMessage) -> None:
        raise Retry(reason="no answer")

    async def scenario() -> None:
        async with Life(database_url, redis, handler=never, lease=LONG, max_attempts=1) as life:
            (outcome,) = await life.handle(delivery(A))
            assert outcome == Reject("attempt 1 of 1 failed: no answer")

    asyncio.run(scenario())

    row = log_row(ledger.database)
    assert (row["note"], row["failure"]) == ("attempt 1 of 1 failed: no answer", "no answer")


def test_a_death_while_a_reason_is_recorded_costs_no_effect_and_makes_none_twice(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    async def die(switch: KillSwitch) -> None:
        async with Life(database_url, redis, switch, handler=busy) as life:
            with suppress(Killed):
                await life.handle(delivery(A))

    async def live() -> None:
        async with Life(database_url, redis) as life:
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    for step in last_steps(100, 6):
        ledger.create(A)
        switch = KillSwitch(step)
        asyncio.run(die(switch))
        asyncio.run(live())
        assert ledger.effects() == [A], switch.names
        assert log_row(ledger.database)["state"] == 1
        if not switch.dead:
            assert log_row(ledger.database)["failure"] is not None
            return
        if redis:
            Redis.from_url(redis).flushall()
    raise AssertionError("a run that never comes through alive")


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ReliableMQ]:
    made = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'store'}",
        database=f"sqlite:///{tmp_path / 'shop.db'}",
    )
    yield made
    made.close()


def take(message: ReceivedMessage) -> None:
    """A handler."""


WRONG: list[tuple[Any, str]] = [
    ((), "give 1..100 waits; the last one repeats"),
    ((1,) * 101, "give 1..100 waits"),
    ((0, 1), "give waits above 0 and up to 7200 seconds"),
    ((-1,), "give waits above 0 and up to 7200 seconds"),
    ((1, 7201), "give waits above 0 and up to 7200 seconds"),
    ((5, 1), "give waits that do not become shorter"),
    (("1",), "give seconds in a tuple, as (1, 5, 30)"),
    ((True,), "give seconds in a tuple, as (1, 5, 30)"),
    ((float("nan"),), "give seconds in a tuple, as (1, 5, 30)"),
    ((float("inf"),), "give seconds in a tuple, as (1, 5, 30)"),
    (30, "give seconds in a tuple, as (1, 5, 30)"),
    ("1, 5", "give seconds in a tuple, as (1, 5, 30)"),
    ({1, 5}, "give seconds in a tuple, as (1, 5, 30)"),
]


@pytest.mark.parametrize(("waits", "said"), WRONG, ids=str)
def test_wrong_waits_are_refused_in_one_line(mq: ReliableMQ, waits: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        mq.consumer("orders", group="payments", retry_waits=waits)(take)

    assert str(refused.value).startswith("retry_waits=")
    assert said in str(refused.value)


@pytest.mark.parametrize("attempts", [0, -1, 2**31])
def test_a_number_of_attempts_that_cannot_be_counted_is_refused(
    mq: ReliableMQ, attempts: int
) -> None:
    with pytest.raises(UsageError, match=f"max_attempts={attempts}: it must be 1 or more"):
        mq.consumer("orders", group="payments", max_attempts=attempts)(take)


def test_waits_that_outlast_the_consume_log_are_refused_at_the_start(mq: ReliableMQ) -> None:
    mq.create_tables()
    mq.consumer("orders", group="payments", retry_waits=[7200], max_attempts=1000)(take)

    with pytest.raises(UsageError, match="retry_waits_seconds and max_attempts"):
        mq.start()


def test_each_consumer_has_its_own_waits_and_limits(mq: ReliableMQ) -> None:
    mq.create_tables()
    calls: dict[str, list[int]] = {"quick": [], "slow": []}

    @mq.consumer("orders", group="quick", retry_waits=(0.01, 0.02), max_attempts=3)
    def quick(message: ReceivedMessage) -> None:
        calls["quick"].append(message.reconsume_times)
        raise ValueError("quick")

    @mq.consumer("orders", group="slow", retry_waits=(7200,))
    def slow(message: ReceivedMessage) -> None:
        calls["slow"].append(message.reconsume_times)
        raise ValueError("slow")

    with mq:
        with mq.transaction() as tx:
            tx.send("orders", {"id": 1})

        def rows() -> dict[str, Any]:
            with mq.database.engine.connect() as connection:
                return {
                    row.consumer_group: row for row in connection.execute(select(mq.database.logs))
                }

        until(lambda: len(rows()) == 2 and rows()["quick"].note is not None)
        found = rows()

    assert calls == {"quick": [0, 1, 2], "slow": [0]}
    assert found["quick"].note == "attempt 3 of 3 failed: ValueError: quick"
    wait = found["slow"].lease_until - found["slow"].create_date
    assert 7190 < wait.total_seconds() < 7300


def test_a_retry_takes_seconds_or_a_timedelta() -> None:
    assert Retry(after=timedelta(minutes=1)) == Retry(after=60)
    assert Retry(after=timedelta(minutes=1)).after == 60.0
    with pytest.raises(UsageError, match=r"within 0\.\.7200 s"):
        Retry(after=timedelta(hours=3))
