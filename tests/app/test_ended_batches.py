"""A transaction ends under a batch, and the database is away or the process dies: none is lost."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.kill_switch import Killed, KillSwitch
from tests.app.lives import LEASE, LONG, A, B, C, Ledger, Life, delivery
from tests.app.test_ended_transactions import (
    REST,
    ROUTINES,
    assert_given_up,
    commits_by_the_driver,
    forget,
    run,
)

from reliable_mq.consume.shared_run import APART, SharedTransaction, SharingPolicy
from reliable_mq.consume.sql_consume_transaction import ConsumeTransaction
from reliable_mq.consume.sql_receipts import Attempt
from reliable_mq.database.ended_transactions import RunsAgain
from reliable_mq.idempotency.sql_consume_log import LogEntry
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED

ENDS = {"sqlite": "\ufeffCOMMIT", "postgresql": "--\rCOMMIT"}
KEEPS = {"sqlite": "PRAGMA user_version", "postgresql": "SELECT 1;"}


def family(url: str) -> str:
    return "sqlite" if url.startswith("sqlite") else "postgresql"


def failing_once(name: str) -> Callable[..., ConsumeTransaction]:
    """Return what makes attempts whose consume log once does not do a thing: the file is locked."""

    def make(*given: Any, **named: Any) -> ConsumeTransaction:
        attempts = ConsumeTransaction(*given, **named)
        does = getattr(attempts.log, name)
        faults = [OperationalError("", {}, Exception("database is locked"))]

        def does_later(*given: Any) -> Any:
            if faults:
                raise faults.pop()
            return does(*given)

        setattr(attempts.log, name, does_later)
        return attempts

    return make


@pytest.mark.parametrize("batch", [1, 3])
def test_a_row_that_is_not_taken_back_at_once_is_believed_by_nobody(
    database_url: str, redis_url: str, batch: int
) -> None:
    given: dict[str, Any] = {"batch": batch, "make_attempts": failing_once("take_back")}
    assert_given_up(*run(database_url, redis_url, commits_by_the_driver, **given))


@pytest.mark.parametrize("batch", [1, 3])
def test_nor_is_one_of_an_async_handler(database_url: str, redis_url: str, batch: int) -> None:
    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        effect = text("INSERT INTO effects VALUES (:id)")
        await session.execute(effect, {"id": message.message_id})
        if message.message_id == B:
            connection = await session.connection()
            driver: Any = (await connection.get_raw_connection()).driver_connection
            await driver.execute("COMMIT")
        await session.execute(effect, {"id": message.message_id + REST})

    given: dict[str, Any] = {"batch": batch, "make_attempts": failing_once("take_back")}
    assert_given_up(*run(database_url, redis_url, handler, **given))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_row_that_cannot_be_looked_at_is_asked_again_before_anybody_believes_it(
    mysql_url: str, redis_url: str, batch: int
) -> None:
    """A procedure commits and loses a deadlock: only the row shows that it committed."""
    ledger = Ledger(mysql_url)
    ledger.create()
    with ledger.database.engine.begin() as connection:
        for each in ROUTINES:
            connection.exec_driver_sql(each)
    ledger.database.close()

    def handler(session: Session, message: ReceivedMessage) -> None:
        effect = text("INSERT INTO effects VALUES (:id)")
        session.execute(effect, {"id": message.message_id})
        if message.message_id == B:
            session.execute(text("CALL loses()"))
        session.execute(effect, {"id": message.message_id + REST})

    given: dict[str, Any] = {"batch": batch, "make_attempts": failing_once("has_consumed")}
    assert_given_up(*run(mysql_url, redis_url, handler, **given))


def test_a_death_beside_a_message_that_commits_loses_no_message_of_its_batch(
    database_url: str, redis_url: str
) -> None:
    """B commits half of its effect; what becomes of B is a person's, A and C are innocent."""
    statement = ENDS[family(database_url)]

    def handler(session: Session, message: ReceivedMessage) -> None:
        effect = text("INSERT INTO effects VALUES (:id)")
        session.execute(effect, {"id": message.message_id})
        if message.message_id == B:
            session.connection().exec_driver_sql(statement)
        session.execute(effect, {"id": message.message_id + REST})

    ledger = Ledger(database_url)
    options: dict[str, Any] = {"handler": handler, "batch": 3, "max_attempts": 3}

    async def die(switch: KillSwitch) -> None:
        async with Life(database_url, redis_url, switch, lease=LEASE, **options) as life:
            with suppress(Killed):
                await life.until_settled(*map(delivery, (A, B, C)))

    async def live() -> None:
        async with Life(database_url, redis_url, lease=LEASE, **options) as life:
            await life.until_settled(*map(delivery, (A, B, C)))

    ledger.create(A, B, C)
    asyncio.run(die(alive := KillSwitch()))
    committed = alive.names.index("after " + " ".join(statement.split()))
    for step in range(committed - 1, committed + 5):
        forget(redis_url)
        ledger.create(A, B, C)
        switch = KillSwitch(step)
        asyncio.run(die(switch))
        assert switch.dead
        asyncio.run(live())
        innocent = [each for each in ledger.effects() if not each.startswith(B)]
        assert innocent == [A, A + REST, C, C + REST], switch.names
    ledger.database.close()


def test_a_batch_shares_no_transaction_for_a_while_after_a_statement_that_may_end_it(
    database_url: str, redis_url: str
) -> None:
    statement = KEEPS[family(database_url)]
    calls: list[str] = []
    ledger = Ledger(database_url)
    ledger.create()

    def handler(session: Session, message: ReceivedMessage) -> None:
        name = message.message_id
        calls.append(name[0])
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": name})
        try:
            with session.begin_nested():
                if name.startswith("B"):
                    session.connection().exec_driver_sql(statement)
        except RunsAgain:  # the handler may take no notice
            calls.append("!")

    async def scenario() -> None:
        options: dict[str, Any] = {"handler": handler, "batch": 3, "lease": LONG}
        async with Life(database_url, redis_url, **options) as life:
            for number in range(2):
                names = [f"{each}{number}" for each in "ABC"]
                assert await life.handle(*map(delivery, names)) == [CONSUMED] * 3

    asyncio.run(scenario())

    assert calls == [*"AB!", *"ABC", *"ABC"]
    assert ledger.effects() == sorted(f"{each}{number}" for each in "ABC" for number in range(2))
    ledger.database.close()


def attempt(name: str, *, receipt: bool = False) -> Attempt:
    entry = LogEntry(
        group="g", message_id=name, topic="t", broker_name="b", queue_id=0, offset=0, token=name
    )
    return Attempt(entry, delivery(name), None, receipt)


def test_a_run_knows_who_failed_who_is_done_and_who_never_ran() -> None:
    first, second, third = map(attempt, "ABC")
    run = SharedTransaction([first, second, third], have_rows=True)
    run.begin(first)
    run.end()
    run.begin(second)
    error = ValueError()
    run.fail(error)

    assert run.failed == (second, error)
    assert (run.done, run.not_run) == ([first], [third])

    run.undo()

    assert run.failed is None
    assert (run.done, run.not_run) == ([first], [third])


def test_after_a_refusal_a_hundred_batches_are_not_tried_together() -> None:
    sharing = SharingPolicy()
    assert sharing.is_tried([attempt("A")])
    assert not sharing.is_tried([attempt("A"), attempt("B", receipt=True)])
    sharing.refuse()
    tried = Counter(sharing.is_tried([attempt("A")]) for _ in range(APART + 2))

    assert tried == {False: APART, True: 2}
