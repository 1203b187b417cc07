"""The consumer's protocol, delivery by delivery, on both databases with and without Redis."""

import asyncio
import math
import threading
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery, write_effect
from tests.waiting import eventually
from tests.waiting_database import until_somebody_waits

from reliable_mq.client.consuming.thread_handling import HandlerStillRunning
from reliable_mq.database.sql_types import READS_ONLY
from reliable_mq.idempotency.key_reading import key_reader_of
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Retry
from reliable_mq.testing.local_servers import LocalValkey


@pytest.mark.parametrize("log_receipt", [False, True])
def test_a_message_is_handled_once_and_its_copies_are_acknowledged(
    database_url: str, ledger: Ledger, redis: str | None, log_receipt: bool
) -> None:
    async def scenario() -> None:
        async with Life(database_url, redis, lease=LONG, log_receipt=log_receipt) as life:
            for _ in range(3):
                assert await life.handle(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert ledger.logs() == {("payments", A): (1, 1)}
    assert [ledger.stubs()[each].status for each in (A, B)] == [1, 0]
    assert ledger.stubs()[A].resend_time is None


def test_the_lease_of_a_consumer_is_the_lease_that_redis_holds(
    database_url: str, ledger: Ledger, redis_url: str
) -> None:
    """A handler that may be silent for long asks for a long lease; another claim waits for it."""

    async def scenario() -> None:
        async with (
            Life(database_url, redis_url, lease=20 * LONG) as first,
            Life(database_url, redis_url, lease=LONG) as second,
        ):
            await first.deliveries._claim([first.deliveries._entry(delivery(A))])
            (outcome,) = await second.handle(delivery(A))
            assert isinstance(outcome, Retry)
            assert outcome.after_seconds is not None
            assert 19 * LONG < outcome.after_seconds <= 20 * LONG

    asyncio.run(scenario())


def test_who_is_cancelled_while_a_thread_is_in_the_handler_says_that_it_goes_on(
    database_url: str, ledger: Ledger
) -> None:
    """Else its queue would be unlocked, and the next owner begin with the key beside it."""
    begun, may_end = threading.Event(), threading.Event()

    def handle(session: Session, message: ReceivedMessage) -> None:
        begun.set()
        may_end.wait()

    async def scenario() -> None:
        async with Life(database_url, None, handler=handle, lease=LONG) as life:

            async def interrupted() -> None:
                with pytest.raises(HandlerStillRunning):
                    await life.deliveries.handle([delivery(A)])

            handling = asyncio.create_task(interrupted())
            try:
                await asyncio.to_thread(begun.wait)
                handling.cancel()
                await handling
            finally:
                may_end.set()

    asyncio.run(scenario())


def test_a_stub_is_confirmed_by_the_last_of_its_groups(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    ledger.create(A, groups=("loyalty", "payments"))

    async def consume(group: str) -> None:
        async with Life(database_url, redis, group=group, lease=LONG) as life:
            assert await life.handle(delivery(A)) == [CONSUMED]

    asyncio.run(consume("payments"))
    assert ledger.stubs()[A].status == 0
    asyncio.run(consume("elsewhere"))
    assert ledger.stubs()[A].status == 0
    asyncio.run(consume("loyalty"))
    assert ledger.stubs()[A].status == 1


def test_two_groups_that_commit_at_the_same_moment_do_not_miss_each_other(
    postgres_url: str, redis_url: str
) -> None:
    """Repeated, because the moment cannot be forced without stopping inside a statement."""
    ledger = Ledger(postgres_url)
    names = [f"{number:032d}" for number in range(60)]
    ledger.create(*names, groups=("loyalty", "payments"))

    async def scenario() -> None:
        async with (
            Life(postgres_url, redis_url, group="payments", lease=LONG) as payments,
            Life(postgres_url, redis_url, group="loyalty", lease=LONG) as loyalty,
        ):
            for name in names:
                await asyncio.gather(
                    payments.handle(delivery(name)), loyalty.handle(delivery(name))
                )

    asyncio.run(scenario())

    assert {row.status for row in ledger.stubs().values()} == {1}
    ledger.database.close()


def test_two_owners_at_once_have_one_effect_and_nobody_acknowledges_too_early(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    """The second copy arrives while the first one's handler runs in another process."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(session: Session, message: ReceivedMessage) -> None:
        inside.set()
        go_on.wait(60)
        write_effect(session, message)

    async def scenario() -> None:
        # SQLite has one writer, so the first must not hold it while the second asks: receipt first
        options: dict[str, Any] = {"lease": LONG}
        options["log_receipt"] = database_url.startswith("sqlite")
        async with (
            Life(database_url, redis, handler=slow, **options) as first,
            Life(database_url, redis, **options) as second,
        ):
            running = asyncio.create_task(first.handle(delivery(A)))
            await asyncio.to_thread(inside.wait, 60)
            (outcome,) = await second.handle(delivery(A))
            assert isinstance(outcome, Retry)
            assert not outcome.counts
            go_on.set()
            assert await running == [CONSUMED]
            assert await second.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]


def test_redis_flushed_while_a_handler_runs_lets_the_database_decide(
    postgres_url: str, redis_url: str, valkey_server: LocalValkey
) -> None:
    ledger = Ledger(postgres_url)
    ledger.create(A)
    inside, go_on = threading.Event(), threading.Event()

    def slow(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        inside.set()
        go_on.wait(60)

    async def scenario() -> None:
        async with (
            Life(postgres_url, redis_url, handler=slow, lease=LONG) as first,
            Life(postgres_url, redis_url, lease=LONG) as second,
        ):
            running = asyncio.create_task(first.handle(delivery(A)))
            await asyncio.to_thread(inside.wait, 60)
            valkey_server.flush()
            # The second gets the lease, and waits at the row that the first has inserted.
            rival = asyncio.create_task(second.handle(delivery(A)))
            await asyncio.to_thread(until_somebody_waits, ledger.database)
            assert not rival.done()
            go_on.set()
            assert (await running, await rival) == ([CONSUMED], [CONSUMED])

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert ledger.logs() == {("payments", A): (1, 1)}
    ledger.database.close()


def test_redis_that_goes_away_changes_nothing_but_the_number_of_commits(
    database_url: str, ledger: Ledger, redis_url: str, valkey_server: LocalValkey
) -> None:
    async def scenario() -> None:
        async with Life(database_url, redis_url, lease=LONG) as life:
            assert await life.handle(delivery(A)) == [CONSUMED]
            valkey_server.kill()
            try:
                assert await life.handle(delivery(A), delivery(B)) == [CONSUMED, CONSUMED]
            finally:
                valkey_server.start()
            assert await life.handle(delivery(B), delivery(C)) == [CONSUMED, CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A, B, C]


def test_two_copies_of_a_message_in_one_batch_have_one_effect(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    async def scenario() -> None:
        async with Life(database_url, redis, batch=2, lease=LONG) as life:
            first, second = await life.handle(delivery(A), delivery(A))
            assert first == CONSUMED
            assert isinstance(second, Retry)
            assert not second.counts

    asyncio.run(scenario())

    assert ledger.effects() == [A]


@pytest.mark.parametrize("batch", [1, 3])
def test_an_async_handler_keeps_the_same_promises(
    database_url: str, ledger: Ledger, redis: str | None, batch: int
) -> None:
    calls = []

    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        calls.append(message.message_id)
        await session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id})
        if calls.count(message.message_id) == 1 and message.message_id == B:
            raise ValueError("once")

    async def scenario() -> None:
        async with Life(database_url, redis, handler=handler, batch=batch, lease=LONG) as life:
            if batch == 1:
                await asyncio.gather(*(life.until_settled(delivery(each)) for each in (A, B, C)))
            else:
                await life.until_settled(*map(delivery, (A, B, C)))
            assert await life.handle(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A, B, C]
    # A batch that does not go well all at once is rolled back and runs again one by one.
    assert sorted(calls) == ([A, B, B, C] if batch == 1 or not redis else [A, A, B, B, C])
    assert {row.status for row in ledger.stubs().values()} == {1}


def test_a_handler_longer_than_its_lease_keeps_it(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(session: Session, message: ReceivedMessage) -> None:
        inside.set()
        go_on.wait(60)
        write_effect(session, message)

    async def scenario() -> None:
        # Long enough that a busy machine finds the time to renew it.
        options: dict[str, Any] = {"lease": 6.0, "log_receipt": True}
        async with (
            Life(database_url, redis, handler=slow, renews=True, **options) as first,
            Life(database_url, redis, **options) as second,
        ):
            running = asyncio.create_task(first.handle(delivery(A)))
            await asyncio.to_thread(inside.wait, 60)
            left = [math.inf]

            async def is_renewed() -> bool:
                (outcome,) = await second.handle(delivery(A))
                assert isinstance(outcome, Retry)
                left.append(outcome.after_seconds or 0.0)
                return len(left) > 3 and left[-1] > left[-2]

            await eventually(is_renewed, lambda: left[-2:])
            go_on.set()
            assert await running == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
    assert ledger.logs() == {("payments", A): (1, 1)}


@pytest.mark.parametrize("batch", [1, 3])
def test_a_retry_keeps_the_leases_of_its_rows_though_it_began_without_one(
    database_url: str, ledger: Ledger, redis: str | None, batch: int
) -> None:
    if database_url.startswith("sqlite") and batch > 1:
        pytest.skip("one writer: the transaction of a batch keeps everybody out")
    again, inside, go_on = threading.Event(), threading.Event(), threading.Event()

    def slow_at_last(session: Session, message: ReceivedMessage) -> None:
        if not again.is_set():
            raise ValueError("the first time")
        inside.set()
        go_on.wait(60)
        write_effect(session, message)

    def leases() -> list[Any]:
        tables = (ledger.database.logs, ledger.database.keys)
        with ledger.database.engine.execution_options(**READS_ONLY).begin() as connection:
            return [row.lease_until for each in tables for row in connection.execute(select(each))]

    async def scenario() -> None:
        messages = [delivery(name, f'{{"n": "{name}"}}'.encode()) for name in (A, B, C)[:batch]]
        options: dict[str, Any] = {"lease": LONG, "batch": batch}
        options["read_key"] = key_reader_of("n", "payments")
        async with Life(database_url, redis, handler=slow_at_last, **options) as life:
            assert await life.handle(*messages) == [Retry(0.01)] * batch
            again.set()
            running = asyncio.create_task(life.handle(*messages))
            await asyncio.to_thread(inside.wait, 60)
            before = leases()
            await life.deliveries._renew(math.inf)
            after = leases()
            go_on.set()
            assert await running == [CONSUMED] * batch
        assert len(before) == 2 * batch
        assert all(now > then for then, now in zip(before, after, strict=True))

    asyncio.run(scenario())

    assert set(ledger.logs().values()) == {(1, 2)}


def test_stubs_of_one_group_and_of_several_are_confirmed_in_any_order(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    """What the last stub was like is only where the next one's confirmation begins."""
    both = ("loyalty", "payments")
    with ledger.database.engine.begin() as connection:
        table = ledger.database.stubs
        connection.execute(
            table.update()
            .where(table.c.message_id == B)
            .values(required_groups=",".join(both), status=0)
        )

    async def scenario() -> None:
        async with Life(database_url, redis, lease=LONG) as payments:
            for name in (A, B, C):
                assert await payments.handle(delivery(name)) == [CONSUMED]
        assert [ledger.stubs()[each].status for each in (A, B, C)] == [1, 0, 1]
        async with Life(database_url, redis, group="loyalty", lease=LONG) as loyalty:
            assert await loyalty.handle(delivery(B)) == [CONSUMED]

    asyncio.run(scenario())

    assert [ledger.stubs()[each].status for each in (A, B, C)] == [1, 1, 1]


def test_of_a_series_every_message_has_a_transaction_of_its_own(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    sessions: set[Session] = set()

    def handler(message: ReceivedMessage, session: Session) -> None:
        sessions.add(session)
        write_effect(session, message)
        if message.message_id == B:
            raise ValueError("not today")

    async def scenario() -> None:
        async with Life(database_url, redis, handler=handler, lease=LONG) as life:
            outcomes = await life.handle(*map(delivery, (A, B, C)))
            assert [outcomes[0], outcomes[2]] == [CONSUMED, CONSUMED]
            assert isinstance(outcomes[1], Retry)

    asyncio.run(scenario())

    assert len(sessions) == 3
    assert ledger.effects() == [A, C]
