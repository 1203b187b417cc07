"""An interrupted statement frees the lock of its SQLite file at once."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from reliable_mq.database.sql_database import Database

NO_WAIT = "PRAGMA busy_timeout = 0"
WRITE = text("INSERT INTO orders VALUES ('a'), ('b') RETURNING id")
HELD = text("INSERT INTO orders VALUES (hold('a')), ('b') RETURNING id")


class Interrupted(BaseException):
    """As KeyboardInterrupt: no `except Exception` sees it."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'application.db'}"
    database = Database(url, prefix="rmq_", connections=1)
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id TEXT)"))
    database.close()
    return url


def write_elsewhere(url: str) -> list[str]:
    """Write as another process would, which does not wait."""
    other = Database(url, prefix="rmq_", connections=1)
    event.listen(other.engine, "connect", lambda made, _record: made.execute(NO_WAIT))
    with other.engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES ('c')"))
        found = list(connection.execute(text("SELECT id FROM orders")).scalars())
    other.close()
    return found


def hold(runs: threading.Event, may_end: threading.Event, value: str) -> str:
    """Let a statement that calls this run until it may end."""
    runs.set()
    may_end.wait(60)
    return value


def test_an_interrupted_statement_locks_nobody_out_while_its_traceback_lives(url: str) -> None:
    def interrupt(*given: Any) -> None:
        if "RETURNING" in given[2]:
            raise Interrupted

    database = Database(url, prefix="rmq_", connections=1)
    event.listen(database.engine, "after_cursor_execute", interrupt)
    with pytest.raises(Interrupted) as kept, database.engine.begin() as connection:
        connection.execute(WRITE)

    assert write_elsewhere(url) == ["c"]
    assert kept.tb is not None
    database.close()


def test_a_cancelled_statement_locks_nobody_out_while_its_traceback_lives(url: str) -> None:
    """It is cancelled while SQLite runs it, as a handler is at the end of its time."""
    runs, may_end = threading.Event(), threading.Event()

    async def scenario() -> None:
        database = Database(url, prefix="rmq_", connections=1)
        event.listen(
            database.async_engine.sync_engine,
            "connect",
            lambda made, _record: made.create_function(
                "hold", 1, lambda value: hold(runs, may_end, value)
            ),
        )

        async def write() -> None:
            async with database.async_session() as session, session.begin():
                await session.execute(HELD)

        task = asyncio.create_task(write())
        assert await asyncio.to_thread(runs.wait, 60)
        task.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError) as kept:
            await task

        assert write_elsewhere(url) == ["c"]
        assert kept.tb is not None
        await database.close_async()
        database.close()

    asyncio.run(scenario())


def test_a_close_that_is_cancelled_stays_cancelled(url: str) -> None:
    """The connection's thread is busy, so that the close waits for it."""
    runs, may_end = threading.Event(), threading.Event()

    async def scenario() -> None:
        database = Database(url, prefix="rmq_", connections=1)
        async with database.async_engine.connect() as connection:
            raw = await connection.get_raw_connection()
            driver: Any = raw.driver_connection
        await driver.create_function("hold", 1, lambda value: hold(runs, may_end, value))
        busy = asyncio.ensure_future(driver.execute("SELECT hold('a')"))
        assert await asyncio.to_thread(runs.wait, 60)
        closing = asyncio.create_task(database.close_async())
        await asyncio.sleep(0)  # it begins
        closing.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert closing.cancelling() == 1
        await busy
        database.close()

    asyncio.run(scenario())
