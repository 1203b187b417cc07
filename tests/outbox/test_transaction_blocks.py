"""How a block of `mq.transaction` ends: its session, and sends that nobody awaited."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from tests.outbox.benches import Bench
from tests.waiting import eventually

from reliable_mq.errors import InvariantBroken, MessageRefused, UsageError


def test_a_send_that_nobody_awaited_is_closed_without_a_warning_of_python(
    bench: Bench, recwarn: pytest.WarningsRecorder
) -> None:
    async def scenario() -> None:
        with pytest.raises(UsageError):
            async with bench.transaction() as tx:
                tx.send("orders", {"id": 1})  # type: ignore[unused-coroutine]
        await bench.database.close_async()

    asyncio.run(scenario())
    gc.collect()
    assert [str(each.message) for each in recwarn if "awaited" in str(each.message)] == []


def test_an_error_in_the_block_is_not_hidden_by_a_send_that_nobody_awaited(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.transaction() as tx:
            tx.send("orders", {"id": 1}).close()
            raise ZeroDivisionError

    async def ends() -> None:
        with pytest.raises(ZeroDivisionError):
            await scenario()
        await bench.database.close_async()

    asyncio.run(ends())
    assert bench.ids() == []


def test_a_cancelled_send_counts_as_awaited(bench: Bench) -> None:
    async def scenario() -> None:
        async with bench.transaction() as tx:
            work = tx.send("orders", {"id": 1})
            with pytest.raises(ZeroDivisionError):
                work.throw(ZeroDivisionError())
            await tx.send("orders", {"id": 2})
        await bench.database.close_async()

    asyncio.run(scenario())
    assert len(bench.ids()) == 1


@pytest.mark.parametrize("begins_async", [False, True])
def test_a_block_ends_as_it_began(bench: Bench, begins_async: bool) -> None:
    async def scenario() -> None:
        scope = bench.transaction()
        if begins_async:
            await scope.__aenter__()
            with pytest.raises(InvariantBroken, match="as it began"):
                scope.__exit__(None, None, None)
            await scope.__aexit__(None, None, None)
        else:
            scope.__enter__()
            with pytest.raises(InvariantBroken, match="as it began"):
                await scope.__aexit__(None, None, None)
            scope.__exit__(None, None, None)
        await bench.database.close_async()

    asyncio.run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_that_was_made_for_the_block_is_closed_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    closed: list[str] = []

    async def close() -> None:
        closed.append("async")

    def block() -> None:
        with bench.transaction() as tx:
            monkeypatch.setattr(tx.session, "close", lambda: closed.append("sync"))
            if fails:
                raise ZeroDivisionError

    async def async_block() -> None:
        async with bench.transaction() as tx:
            session, really = tx.session, tx.session.close
            monkeypatch.setattr(session, "close", close)
            try:
                if fails:
                    raise ZeroDivisionError
            finally:
                await really()

    with suppress(ZeroDivisionError):
        block()
    with suppress(ZeroDivisionError):
        asyncio.run(async_block())
    asyncio.run(bench.database.close_async())
    assert closed == ["sync", "async"]


def test_a_session_that_was_given_goes_on_after_the_block(bench: Bench) -> None:
    """What joined its transaction is not ended by the block."""
    with bench.transaction() as tx:
        own = tx.session
        tx.send("orders", {"id": 1})
    assert not own.in_transaction()
    assert bench.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    with bench.database.session() as session:
        session.execute(text("SELECT 1"))
        with bench.transaction(session) as inner:
            inner.send("orders", {"id": 2})
        assert session.in_transaction()
        session.rollback()
    with bench.database.engine.connect() as connection:
        with bench.transaction(connection) as tx:
            assert tx.connection is connection
            tx.send("orders", {"id": 3})
        assert not connection.in_transaction()
    assert len(bench.ids()) == 2


ENDS: dict[str, Callable[[Session], object]] = {
    "rollback": lambda session: session.rollback(),
    "close": lambda session: session.close(),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_block_whose_messages_its_session_has_taken_back_does_not_end_as_a_success(
    bench: Bench, end: str
) -> None:
    def scenario() -> None:
        with bench.transaction() as tx:
            tx.send("orders", {"id": 1})
            ENDS[end](tx.session)
            tx.send("orders", {"id": 2})

    with pytest.raises(UsageError, match=r"has taken back 1 message\(s\) of the block"):
        scenario()
    assert bench.ids() == []


def test_an_asynchronous_block_whose_messages_are_taken_back_does_not_succeed(
    bench: Bench,
) -> None:
    async def scenario() -> None:
        async with bench.transaction() as tx:
            await tx.send("orders", {"id": 1})
            await tx.session.rollback()

    async def ends() -> None:
        with pytest.raises(UsageError, match=r"has taken back 1 message\(s\) of the block"):
            await scenario()
        await bench.database.close_async()

    asyncio.run(ends())
    assert bench.ids() == []


def test_a_rollback_before_the_first_send_or_before_an_error_is_no_fault(bench: Bench) -> None:
    with bench.transaction() as tx:
        tx.session.execute(text("SELECT 1"))
        tx.session.rollback()
        tx.send("orders", {"id": 1})

    def fails() -> None:
        with bench.transaction() as tx:
            tx.send("orders", {"id": 2})
            tx.session.rollback()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert len(bench.ids()) == 1


def test_a_savepoint_within_a_block_may_take_back_its_messages(bench: Bench) -> None:
    with bench.transaction() as tx:
        tx.send("orders", {"id": 1})
        with suppress(ZeroDivisionError), tx.session.begin_nested():
            tx.send("orders", {"id": 2})
            raise ZeroDivisionError

    assert len(bench.ids()) == 1


def test_sends_that_are_gathered_run_one_after_another(bench: Bench) -> None:
    async def scenario() -> list[str]:
        async with bench.transaction() as tx:
            found = await asyncio.gather(*(tx.send("orders", {"id": each}) for each in range(5)))
        await bench.database.close_async()
        return found

    assert asyncio.run(scenario()) == bench.ids()


def test_a_gathered_send_that_is_refused_rolls_all_of_them_back(bench: Bench) -> None:
    """Given a block that ends while other tasks still send, then they write nothing after it."""

    payloads = ({"id": 1}, object(), {"id": 2}, {"id": 3})
    tasks: list[asyncio.Task[str]] = []

    async def block() -> None:
        async with bench.transaction() as tx:
            tasks.extend(asyncio.ensure_future(tx.send("orders", each)) for each in payloads)
            await asyncio.gather(*tasks)

    async def scenario() -> None:
        with pytest.raises(MessageRefused):
            await block()
        await asyncio.wait(tasks)
        await bench.database.close_async()

    asyncio.run(scenario())
    assert (tasks[0].exception(), bench.ids()) == (None, [])
    assert isinstance(tasks[-1].exception(), UsageError)


def test_a_block_that_is_cancelled_while_another_task_sends_is_rolled_back(bench: Bench) -> None:
    blocks: list[Any] = []

    async def block() -> None:
        async with bench.transaction() as tx:
            await tx.send("orders", {"id": 1})
            await tx._turn.__aenter__()  # as a send of another task does
            blocks.append(tx)

    async def scenario() -> None:
        task = asyncio.create_task(block())
        await eventually(lambda: blocks)
        task.cancel()
        await asyncio.sleep(0)
        assert blocks[0].session.in_transaction(), "its send must end first"
        await blocks[0]._turn.__aexit__(None, None, None)
        await asyncio.wait([task])
        assert task.cancelled()
        assert not blocks[0].session.in_transaction()
        await bench.database.close_async()

    asyncio.run(scenario())
    assert bench.ids() == []
