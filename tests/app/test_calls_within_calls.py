"""An idempotent function that calls another one, or itself, and whose session it then gets."""

import asyncio
import gc
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.app.banks import Bank

from reliable_mq import injected
from reliable_mq.errors import KeyInvalid, UsageError
from reliable_mq.idempotency.held_keys import _Held, holding
from reliable_mq.idempotency.sql_calls import KeyedCall

ITSELF = "calls .* with the same key, and would wait for its own end"
# Where it is not refused it waits for ever: PostgreSQL sees no deadlock in it.
pytestmark = pytest.mark.timeout(120)


def run(bank: Bank, scenario: Callable[[], Any]) -> Any:
    async def whole() -> Any:
        try:
            return await scenario()
        finally:
            await bank.mq.database.close_async()

    return asyncio.run(whole())


def insert(session: Session, what: str) -> None:
    session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": what})


def test_a_call_with_the_key_of_the_call_it_is_made_in_is_refused_at_once(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    def place(request: str, session: Session = injected) -> str:
        insert(session, request)
        return place(request)

    with pytest.raises(UsageError, match=ITSELF):
        place("r-1")

    assert (bank.effects(), bank.rows()) == ([], [])


def test_so_it_is_through_another_function_and_without_a_session(
    bank: Bank,
) -> None:
    again: dict[str, Callable[..., Any]] = {}

    @bank.mq.idempotent(key="request")
    def through(request: str) -> str:
        return str(again["inner"](request))

    @bank.mq.idempotent(key="request")
    def between(request: str, session: Session = injected) -> str:
        return through(request)

    @bank.mq.idempotent(key="request")
    def joined(request: str, session: Session = injected) -> str:
        return joined(request, session)

    again["inner"] = between
    for function in (through, joined):
        with pytest.raises(UsageError, match=ITSELF):
            function("r-1")


def test_so_it_is_in_an_async_function_and_in_the_tasks_that_it_waits_for(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    async def directly(request: str, session: AsyncSession = injected) -> str:
        return await directly(request)

    @bank.mq.idempotent(key="request")
    async def in_a_task(request: str, session: AsyncSession = injected) -> str:
        return (await asyncio.gather(in_a_task(request)))[0]

    async def scenario() -> None:
        for function in (directly, in_a_task):
            with pytest.raises(UsageError, match=ITSELF):
                await function("r-1")

    run(bank, scenario)
    assert bank.rows() == []


def test_other_functions_and_other_keys_may_be_called_within_a_call(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    def other(request: str, session: Session = injected) -> str:
        insert(session, f"other {request}")
        return request

    @bank.mq.idempotent(key="request")
    def place(request: str, session: Session = injected, depth: int = 0) -> str:
        insert(session, request)
        if depth < 2:
            place(f"{request}.", depth=depth + 1, session=session)
        return other(request, session=session)

    assert [place("r-1"), place("r-1")] == ["r-1"] * 2
    assert len(bank.effects()) == 6


def test_a_task_that_outlives_its_call_may_call_with_its_key(bank: Bank) -> None:
    later: list[asyncio.Task[str]] = []
    is_over: list[asyncio.Event] = []

    @bank.mq.idempotent(key="request")
    async def place(request: str, session: AsyncSession = injected) -> str:
        async def again() -> str:
            await is_over[0].wait()
            return await place(request)

        later.append(asyncio.create_task(again()))
        return "placed"

    async def scenario() -> None:
        is_over.append(asyncio.Event())
        assert await place("r-1") == "placed"
        is_over[0].set()
        assert await later[0] == "placed"
        assert len(later) == 1

    run(bank, scenario)


def test_a_task_that_each_time_starts_the_next_one_keeps_nothing_of_those_before(
    bank: Bank,
) -> None:
    started: list[asyncio.Task[None]] = []
    kept: list[int] = []

    @bank.mq.idempotent(key="step")
    async def walk(step: int, session: AsyncSession = injected) -> None:
        if step in (5, 25):
            gc.collect()
            kept.append(sum(type(each) is _Held for each in gc.get_objects()))
        if step < 25:
            started[:] = [asyncio.create_task(walk(step + 1))]

    async def scenario() -> None:
        await walk(1)
        while not started[0].done():
            await started[0]

    run(bank, scenario)
    early, late = kept
    assert late < early + 10


@pytest.mark.parametrize("is_in_a_call", [True, False])
def test_a_task_is_within_a_call_also_when_one_between_them_has_ended(is_in_a_call: bool) -> None:
    book = object()
    outer, inner, own, same = (
        holding(book, KeyedCall("place", key, key, None, "token", 60.0)) for key in "abca"
    )
    with outer:
        with inner:
            task = copy_context()
            if is_in_a_call:
                task.run(own.__enter__)
        with pytest.raises(UsageError, match=ITSELF):
            task.run(same.__enter__)
        if is_in_a_call:
            task.run(own.__exit__, None, None, None)


def test_a_call_that_failed_inside_another_one_may_be_repeated_there(bank: Bank) -> None:
    tries: list[str] = []

    @bank.mq.idempotent(key="request")
    def inner(request: str, session: Session = injected) -> str:
        tries.append(request)
        if len(tries) == 1:
            raise ValueError("not yet")
        return request

    @bank.mq.idempotent(key="request")
    def outer(request: str, session: Session = injected) -> str:
        with pytest.raises(ValueError, match="not yet"):
            inner(request, session)
        return inner(request, session)

    assert outer("r-1") == "r-1"


def test_a_session_is_taken_by_its_place_in_the_function(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    def place(request: str, session: Session, amount: int) -> int:
        insert(session, request)
        return amount

    scoped = scoped_session(sessionmaker(bank.mq.database.engine))
    with Session(bank.mq.database.engine) as session:
        assert place("r-0", session, 5) == 5
        session.rollback()  # it is the caller's transaction
        assert place("r-1", session, 5) == 5
        session.commit()
    with Session(bank.mq.database.engine) as session, session.begin():
        assert place("r-2", session=session, amount=6) == 6
    assert place("r-3", scoped, 7) == 7  # type: ignore[arg-type]
    scoped.commit()
    scoped.remove()
    # without one: its place is the next argument's, which type checkers cannot know
    assert place("r-4", 8) == 8  # type: ignore[call-arg]

    assert bank.effects() == ["r-1", "r-2", "r-3", "r-4"]


def test_an_async_session_is_taken_by_its_place_too(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    async def place(request: str, session: AsyncSession, amount: int) -> int:
        await session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": request})
        return amount

    async def scenario() -> None:
        async with AsyncSession(bank.mq.database.async_engine) as session:
            assert await place("r-1", session, 5) == 5
            await session.commit()
        assert await place("r-1", 5) == 5  # type: ignore[call-arg]

    run(bank, scenario)
    assert bank.effects() == ["r-1"]


def test_a_session_that_is_none_says_what_to_write(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    def by_name(request: str, *, session: Session = injected) -> None: ...

    with Session(bank.mq.database.engine) as session:
        with pytest.raises(UsageError, match=r"pass the session by its name, session=…"):
            by_name("r-1", session)  # type: ignore[call-arg]
        by_name("r-1", session=session)
    with pytest.raises(UsageError, match=r"session='x' is not of type Session"):
        by_name("r-1", session="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="too many positional"):
        by_name("r-1", 5)  # type: ignore[call-arg,arg-type]
    with pytest.raises(KeyInvalid):
        by_name("")
