"""A flow over transactions does the same in a thread and on an event loop."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.banks import Bank

from reliable_mq import injected
from reliable_mq.database.thread_world import run
from reliable_mq.errors import InvariantBroken

ERRORS = [ValueError("no"), StopIteration("no"), SystemExit(3), KeyboardInterrupt()]


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    made = Bank(f"sqlite:///{tmp_path}/bank.db")
    yield made
    made.mq.close()


def test_a_flow_that_waits_for_an_event_loop_is_refused_in_a_thread() -> None:
    async def waits() -> None:
        await asyncio.sleep(0)

    with pytest.raises(InvariantBroken, match="waits in a thread for an event loop"):
        run(waits)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_a_def_raises_with_a_session_reaches_its_caller_unchanged(
    bank: Bank, error: BaseException
) -> None:
    @bank.mq.idempotent(key="request")
    def pay(request: str, session: Session = injected) -> None:
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": request})
        raise error

    with pytest.raises(type(error)) as raised:
        pay("r-1")

    assert raised.value is error
    assert (bank.effects(), bank.rows()) == ([], [])


@pytest.mark.parametrize("error", ERRORS[:2], ids=lambda error: type(error).__name__)
def test_what_a_def_raises_without_a_session_reaches_its_caller_unchanged(
    bank: Bank, error: Exception
) -> None:
    @bank.mq.idempotent(key="request")
    def ask(request: str) -> None:
        raise error

    for _ in range(2):  # and the key is free again
        with pytest.raises(type(error)) as raised:
            ask("r-1")
        assert raised.value is error


def test_an_async_call_that_raises_leaves_nothing_of_it_in_its_callers_transaction(
    bank: Bank,
) -> None:
    @bank.mq.idempotent(key="request")
    async def pay(request: str, session: AsyncSession, amount: int) -> int:
        await session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": request})
        if amount < 0:
            raise ValueError("no such amount")
        return amount

    async def scenario() -> None:
        database = bank.mq.database
        async with AsyncSession(database.async_engine) as session, session.begin():
            with pytest.raises(ValueError, match="no such amount"):
                await pay("r-1", session=session, amount=-1)
            assert await pay("r-2", session=session, amount=5) == 5
        await database.close_async()

    asyncio.run(scenario())

    assert bank.effects() == ["r-2"]
    assert len(bank.rows()) == 1
