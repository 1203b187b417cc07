"""A handler's transaction is ours to end: whatever it tries, effect and row are one commit.

`make test` tries each end on each database with every value of each mode, `make crash` in all
combinations of modes.
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery, write_effect
from tests.steps import EVERY_STEP

from reliable_mq.database.sql_handler_session import HandlerSession
from reliable_mq.errors import UsageError
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Reject, Retry

ENDS: dict[str, Callable[[Session], object]] = {
    "session.commit": lambda session: session.commit(),
    "session.rollback": lambda session: session.rollback(),
    "session.close": lambda session: session.close(),
    "transaction.commit": lambda session: session.get_transaction().commit(),  # type: ignore[union-attr]
    "transaction.rollback": lambda session: session.get_transaction().rollback(),  # type: ignore[union-attr]
    "connection.commit": lambda session: session.connection().commit(),
    "connection.rollback": lambda session: session.connection().rollback(),
    "COMMIT as SQL": lambda session: session.execute(text(" commit")),
    "COMMIT behind another": lambda session: session.execute(text("SELECT 1; /* so */ COMMIT")),
    "COMMIT behind nothing": lambda session: session.connection().exec_driver_sql(" ;COMMIT"),
    "ROLLBACK as SQL": lambda session: session.connection().exec_driver_sql("ROLLBACK"),
}


def combined(*modes: object) -> Iterator[tuple[object, ...]]:
    """Yield each end with combinations of two modes: with half of them, or with all."""
    for number, end in enumerate(ENDS):
        for first, second in product(range(2), repeat=2):
            if EVERY_STEP or (first + second + number) % 2 == 0:
                yield (end, bool(first), modes[second])


def ends_for(name: str, end: Callable[[Session], object], *, swallows: bool) -> Callable[..., None]:
    """Return a handler that ends its transaction for one message, and then goes on."""

    def handler(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        if message.message_id == name:
            try:
                end(session)
            except Exception:
                if not swallows:
                    raise
            session.execute(text("SELECT 1"))

    return handler


@pytest.mark.parametrize(("end", "swallows", "log_receipt"), combined(False, True))
def test_a_handler_that_ends_its_transaction_takes_no_message_of_its_batch_along(
    database_url: str,
    ledger: Ledger,
    redis_url: str,
    end: str,
    swallows: bool,
    log_receipt: bool,
) -> None:
    handler = ends_for(B, ENDS[end], swallows=swallows)

    async def scenario() -> list[Any]:
        options: dict[str, Any] = {"handler": handler, "lease": LONG, "log_receipt": log_receipt}
        async with Life(database_url, redis_url, batch=3, max_attempts=2, **options) as life:
            return await life.until_settled(*map(delivery, (A, B, C)))

    first, second, third = asyncio.run(scenario())

    assert (first, third) == (CONSUMED, CONSUMED)
    consumed = [A, B, C] if second == CONSUMED else [A, C]
    assert second == CONSUMED or isinstance(second, Reject)
    assert swallows or isinstance(second, Reject)
    assert ledger.effects() == consumed
    states = {name: state for (_, name), (state, _) in ledger.logs().items()}
    assert [name for name in (A, B, C) if states[name] == 1] == consumed


@pytest.mark.parametrize(
    ("end", "log_receipt", "redis"), combined("redis", "no redis"), indirect=["redis"]
)
def test_a_handler_that_ends_its_transaction_every_time_never_has_an_effect(
    database_url: str, ledger: Ledger, redis: str | None, end: str, log_receipt: bool
) -> None:
    handler = ends_for(A, ENDS[end], swallows=False)

    async def scenario() -> list[Any]:
        options: dict[str, Any] = {"handler": handler, "lease": LONG, "log_receipt": log_receipt}
        async with Life(database_url, redis, max_attempts=3, **options) as life:
            return await life.until_settled(delivery(A))

    (outcome,) = asyncio.run(scenario())

    assert isinstance(outcome, Reject)
    assert outcome.reason.startswith("attempt 3 of 3 failed: UsageError: a handler must not ")
    assert ledger.effects() == []
    assert ledger.logs() == {("payments", A): (0, 3)}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("log_receipt", [False, True])
def test_an_async_handler_cannot_end_its_transaction_either(
    database_url: str, ledger: Ledger, redis: str | None, batch: int, log_receipt: bool
) -> None:
    ends: list[Callable[[AsyncSession], Any]] = [
        lambda session: session.commit(),
        lambda session: session.rollback(),
        lambda session: session.close(),
        lambda session: session.run_sync(lambda inner: inner.connection().commit()),
    ]

    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        await session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message.message_id})
        if message.message_id == A and ends:
            await ends.pop()(session)

    async def scenario() -> None:
        options: dict[str, Any] = {"handler": handler, "lease": LONG, "log_receipt": log_receipt}
        async with Life(database_url, redis, batch=batch, **options) as life:
            names = (A, B, C)[:batch]
            assert await life.until_settled(*map(delivery, names)) == [CONSUMED] * batch

    asyncio.run(scenario())

    assert ends == []
    assert ledger.effects() == [A, B, C][:batch]


def test_a_handler_may_use_savepoints_of_its_own(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    def handler(session: Session, message: ReceivedMessage) -> None:
        with session.begin_nested():
            write_effect(session, message)
        try:
            with session.begin_nested():
                write_effect(session, message)
                session.execute(text("SELECT no_such_column"))
        except DatabaseError:
            pass
        session.begin_nested()  # and one that is left open

    async def scenario() -> None:
        async with Life(database_url, redis, handler=handler, batch=3, lease=LONG) as life:
            assert await life.handle(delivery(A)) == [CONSUMED]
            assert await life.handle(delivery(B), delivery(C)) == [CONSUMED, CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A, B, C]


def test_a_handler_may_mention_the_end_of_a_transaction(
    database_url: str, ledger: Ledger, redis_url: str
) -> None:
    said = ["SELECT 'a; COMMIT'", "SELECT 1 -- ; COMMIT", "SELECT /*; END */ 1;"]
    if database_url.startswith("postgresql"):
        said += ["DO $$ BEGIN PERFORM 1; END $$", "SAVEPOINT a; ROLLBACK TO SAVEPOINT a"]

    def handler(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        for statement in said:
            session.connection().exec_driver_sql(statement)

    async def scenario() -> None:
        async with Life(database_url, redis_url, handler=handler, lease=LONG) as life:
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]


def test_a_handler_that_has_not_run_when_it_returns_is_not_acknowledged(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    async def notify(message: ReceivedMessage) -> None: ...

    def behind_a_decorator(message: ReceivedMessage) -> Any:
        return notify(message)

    async def scenario() -> None:
        async with Life(database_url, redis, handler=behind_a_decorator, lease=LONG) as life:
            (outcome,) = await life.handle(delivery(A))
            assert isinstance(outcome, Retry)

    asyncio.run(scenario())

    assert ledger.logs() == {("payments", A): (0, 1)}


@pytest.mark.parametrize("verb", ["close", "reset", "invalidate"])
def test_the_refusal_names_what_the_handler_did_with_its_session(verb: str) -> None:
    session = HandlerSession(create_engine("sqlite://"))
    session.execute(text("SELECT 1"))

    with session.held(), pytest.raises(UsageError, match=f"must not {verb} its session"):
        getattr(session, verb)()

    session.close()
