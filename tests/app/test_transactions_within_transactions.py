"""A transaction of SQLite within another one is refused at once where it would wait for itself."""

import asyncio
import threading
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path

import pytest
from sqlalchemy import func, select
from tests.waiting import eventually, until

from reliable_mq import ReliableMQ
from reliable_mq.errors import UsageError

WAITS = "inside another one of the same SQLite file would wait for itself: use the session"


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ReliableMQ]:
    made = ReliableMQ("shop", broker="127.0.0.1:1", database=f"sqlite:///{tmp_path}/shop.db")
    made.topic("orders", groups=["payments"])
    made.create_tables()
    yield made
    made.close()


def stubs(mq: ReliableMQ) -> int:
    with mq.database.reading_engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(mq.database.stubs)) or 0


def send(mq: ReliableMQ) -> None:
    with mq.transaction() as tx:
        tx.send("orders", {"id": 1})


async def send_async(mq: ReliableMQ) -> None:
    async with mq.transaction() as tx:
        await tx.send("orders", {"id": 1})


def test_a_block_within_a_block_is_refused_and_both_are_rolled_back(mq: ReliableMQ) -> None:
    """It waited for ten seconds, and failed with "database is locked"."""

    def nested() -> None:
        with mq.transaction() as tx:
            tx.send("orders", {"id": 1})
            send(mq)

    with pytest.raises(UsageError, match=WAITS):
        nested()

    assert stubs(mq) == 0
    send(mq)
    assert stubs(mq) == 1


def test_so_is_a_block_of_a_coroutine(mq: ReliableMQ) -> None:
    async def nested() -> None:
        async with mq.transaction() as tx:
            await tx.send("orders", {"id": 1})
            await send_async(mq)

    async def scenario() -> None:
        with pytest.raises(UsageError, match=WAITS):
            await nested()
        await send_async(mq)
        await mq.database.close_async()

    asyncio.run(scenario())

    assert stubs(mq) == 1


def test_with_the_session_of_the_outer_block_it_is_one_transaction(mq: ReliableMQ) -> None:
    with mq.transaction() as tx:
        tx.send("orders", {"id": 1})
        with mq.transaction(tx.session) as inner:
            inner.send("orders", {"id": 2})

    assert stubs(mq) == 2


def test_a_block_that_ends_before_the_outer_one_begins_is_accepted(mq: ReliableMQ) -> None:
    with mq.transaction() as tx:
        send(mq)
        tx.send("orders", {"id": 2})

    assert stubs(mq) == 2


def test_a_task_that_was_made_within_a_block_waits_for_its_end(mq: ReliableMQ) -> None:
    async def scenario() -> None:
        async with mq.transaction() as tx:
            await tx.send("orders", {"id": 1})
            other = asyncio.create_task(send_async(mq))
            await eventually(lambda: mq.database.async_engine.pool.checkedout() == 2)  # type: ignore[attr-defined]
        await other
        await mq.database.close_async()

    asyncio.run(scenario())

    assert stubs(mq) == 2


def test_a_thread_that_serves_another_request_meanwhile_waits_for_the_first(mq: ReliableMQ) -> None:
    """A framework may begin a block in one thread of its pool and end it in another one."""
    first, second = copy_context(), copy_context()
    block = mq.transaction()
    tx = first.run(block.__enter__)
    first.run(tx.send, "orders", {"id": 1})

    def end_when_the_other_waits() -> None:
        until(lambda: mq.database.engine.pool.checkedout() == 2)  # type: ignore[attr-defined]
        block.__exit__(None, None, None)

    thread = threading.Thread(target=end_when_the_other_waits)
    thread.start()
    second.run(send, mq)
    thread.join()

    assert stubs(mq) == 2
