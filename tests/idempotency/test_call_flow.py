"""The flow of an idempotent call: what is committed when, and what its caller gets."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.waiting import until

from reliable_mq.database.sql_database import Database
from reliable_mq.errors import CallRunning, KeyReused, UsageError
from reliable_mq.idempotency.idempotent_function import idempotent_function
from reliable_mq.idempotency.keyed_function import IdempotentCall, KeyedFunction
from reliable_mq.idempotency.thread_calls import CallBook


class World:
    """Functions of one application; `made` says what the functions were called with."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=4)
        self.database.create_tables()
        self.book = CallBook(lambda: self.database, lease=60.0)
        self.made: list[Any] = []

    def of(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        given: dict[str, Any] = {"key": "key", "scope": "pay", "compare": None, "window": 60.0}
        return idempotent_function(self.book, KeyedFunction(function, **(given | options)))

    def rows(self) -> list[tuple[Any, ...]]:
        table = self.database.calls
        wanted = select(table.c.call_key, table.c.state, table.c.result, table.c.owner)
        with self.database.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(wanted.order_by(table.c.call_key))]


@pytest.fixture
def world(tmp_path: Any) -> Iterator[World]:
    made = World(f"sqlite:///{tmp_path}/shop.db")
    yield made
    made.database.close()


def test_a_function_runs_once_for_each_key_and_its_result_is_given_again(world: World) -> None:
    def pay(key: str, amount: int = 1) -> dict[str, int]:
        world.made.append(key)
        return {"paid": amount}

    call = world.of(pay)
    assert [call("a", 5), call("a", 6), call("b", amount=7)] == [
        {"paid": 5},
        {"paid": 5},
        {"paid": 7},
    ]
    assert world.made == ["a", "b"]
    assert [row[:3] for row in world.rows()] == [("a", 1, b'{"paid":5}'), ("b", 1, b'{"paid":7}')]


def test_with_a_session_nothing_is_committed_when_the_function_raises(world: World) -> None:
    def pay(key: str, session: Session) -> str:
        world.made.append(session)
        if len(world.made) == 1:
            raise ZeroDivisionError
        return "paid"

    call = world.of(pay)
    with pytest.raises(ZeroDivisionError):
        call("a")
    assert world.rows() == []
    assert call("a") == call("a") == "paid"
    assert len(world.made) == 2


def test_in_the_callers_transaction_the_caller_decides(world: World) -> None:
    def pay(key: str, session: Session) -> str:
        return "paid"

    call = world.of(pay)
    with world.database.session() as session, session.begin():
        assert call("a", session=session) == "paid"
        session.rollback()
    assert world.rows() == []
    with world.database.session() as session, session.begin():
        assert call("a", session) == "paid"
    assert [row[:2] for row in world.rows()] == [("a", 1)]


def test_a_function_whose_key_is_gone_at_its_end_has_no_effect(world: World) -> None:
    def pay(key: str, session: Session) -> str:
        session.execute(world.database.calls.delete())
        return "paid"

    with pytest.raises(UsageError, match="it committed or rolled back its session"):
        world.of(pay)("a")
    assert world.rows() == []


def test_without_a_session_a_failed_call_lets_its_key_go(world: World) -> None:
    def pay(key: str, told: IdempotentCall) -> str:
        world.made.append((told.key, told.attempt, told.in_doubt))
        if told.attempt == 1:
            raise ZeroDivisionError
        return "paid"

    call = world.of(pay)
    with pytest.raises(ZeroDivisionError):
        call("a")
    assert [(row[0], row[1], row[3]) for row in world.rows()] == [("a", 0, None)]
    assert call("a") == "paid"
    assert world.made == [("a", 1, False), ("a", 2, False)]


def test_a_result_that_cannot_be_stored_is_told_and_the_call_is_done(world: World) -> None:
    """Its effect has happened, so it must not happen again."""

    def pay(key: str) -> Any:
        world.made.append(key)
        return float("nan")

    call = world.of(pay)
    with pytest.raises(UsageError, match="its result cannot be stored"):
        call("a")
    with pytest.raises(UsageError, match="the result of this call could not be stored"):
        call("a")
    assert world.made == ["a"]
    assert [row[:3] for row in world.rows()] == [("a", 1, None)]


def test_while_a_call_runs_its_key_is_refused_and_other_arguments_as_well(world: World) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def pay(key: str, amount: int) -> str:
        begun.set()
        go_on.wait(60)
        return "paid"

    call = world.of(pay, compare="amount")
    running = threading.Thread(target=call, args=("a", 1))
    running.start()
    assert begun.wait(60)
    with pytest.raises(CallRunning, match="a call of pay with key 'a' is running") as told:
        call("a", 1)
    assert 0 < told.value.retry_after <= 60
    with pytest.raises(KeyReused, match="key 'a' of pay belongs to other arguments"):
        call("a", 2)
    go_on.set()
    running.join(60)
    assert call("a", 1) == "paid"
    with pytest.raises(KeyReused):
        call("a", 2)


def test_a_call_that_lost_its_claim_says_that_it_may_have_run_twice(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def pay(key: str) -> str:
        with world.database.engine.begin() as connection:
            connection.execute(world.database.calls.update().values(owner="somebody else"))
        return "paid"

    assert world.of(pay)("a") == "paid"
    (record,) = caplog.records
    assert "pay: the call with key 'a' lost its claim" in record.getMessage()
    assert [(row[1], row[3]) for row in world.rows()] == [(0, "somebody else")]


def test_the_lease_of_a_call_is_renewed_while_it_runs(world: World) -> None:
    book = CallBook(lambda: world.database, lease=0.03)
    table = world.database.calls

    def end() -> Any:
        with world.database.engine.connect() as connection:
            return connection.execute(select(table.c.lease_until)).scalar_one()

    def pay(key: str) -> str:
        first = end()
        until(lambda: end() > first)
        second = end()
        until(lambda: end() > second)
        return "paid"

    keyed = KeyedFunction(pay, key="key", scope="pay", compare=None, window=60.0)
    assert idempotent_function(book, keyed)("a") == "paid"
    until(lambda: all(each.name != "reliable-mq-calls" for each in threading.enumerate()))


def test_renewals_go_on_when_the_database_was_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    away = [True]

    def database() -> Database:
        if away and threading.current_thread().name == "reliable-mq-calls":
            away.clear()
            raise ConnectionError("no database")
        return world.database

    book = CallBook(database, lease=0.03)
    table = world.database.calls

    def end() -> Any:
        with world.database.engine.connect() as connection:
            return connection.execute(select(table.c.lease_until)).scalar_one()

    def pay(key: str) -> str:
        first = end()
        until(lambda: end() > first)
        return "paid"

    keyed = KeyedFunction(pay, key="key", scope="pay", compare=None, window=60.0)
    assert idempotent_function(book, keyed)("a") == "paid"
    assert not away
    assert "idempotent calls: their leases are not renewed" in caplog.text


def test_a_program_may_end_while_a_call_runs(world: World) -> None:
    def pay(key: str) -> bool:
        (renewer,) = (each for each in threading.enumerate() if each.name == "reliable-mq-calls")
        return renewer.daemon

    assert world.of(pay)("a") is True


def test_each_call_has_a_name_of_its_own(world: World) -> None:
    names = [world.book.token() for _ in range(3)] + [
        CallBook(lambda: world.database, lease=1.0).token()
    ]
    assert len(set(names)) == 4


def test_an_asynchronous_function_keeps_the_same_promises(world: World) -> None:
    async def pay(key: str, session: AsyncSession) -> str:
        world.made.append(key)
        if key == "fails":
            raise ZeroDivisionError
        return f"paid {key}"

    async def note(key: str) -> str:
        world.made.append(key)
        return f"noted {key}"

    async def scene() -> None:
        call, other = world.of(pay), world.of(note, scope="note")
        assert [await call("a"), await call("a"), await other("a")] == [
            "paid a",
            "paid a",
            "noted a",
        ]
        with pytest.raises(ZeroDivisionError):
            await call("fails")
        async with world.database.async_session() as session, session.begin():
            assert await call("b", session=session) == "paid b"
            await session.rollback()
        await world.database.close_async()

    asyncio.run(scene())
    assert world.made == ["a", "a", "fails", "b"]
    assert [row[0] for row in world.rows()] == ["a", "a"]


def test_callers_see_only_the_parameters_that_they_give(world: World) -> None:
    def pay(key: str, session: Session, told: IdempotentCall, amount: int = 1) -> str:
        """Pay."""
        return "paid"

    call: Any = world.of(pay)
    assert list(call.__signature__.parameters) == ["key", "amount"]
    assert set(call.__annotations__) == {"key", "amount", "return"}
    assert (call.__name__, call.__doc__) == ("pay", "Pay.")


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_function_that_ends_its_transaction_behind_the_session_is_told_so(
    world: World, ends: str
) -> None:
    def pay(key: str, session: Session) -> str:
        getattr(session.connection().connection.driver_connection, ends)()
        return "paid"

    with pytest.raises(UsageError, match="was ended by one of its statements"):
        world.of(pay)("a")
