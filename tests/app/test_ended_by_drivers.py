"""Every driver that SQLAlchemy has for these databases shows that a transaction was ended (P4).

Handlers have the drivers that we chose. Which ones a dialect gets that somebody registers is open.
"""

import asyncio
import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.outbox.test_users_drivers import DRIVERS, Driver

from reliable_mq.database.ended_transactions import TransactionEnded
from reliable_mq.database.sql_handler_session import HandlerSession, hold_transactions_of
from reliable_mq.errors import UsageError

ENDS = {"mysql": "/*!50000 COMMIT */", "postgresql": "--\rCOMMIT"}
KEEPS = {"mysql": "SET @x = 1", "postgresql": "--\rSET application_name = 'ours'"}


@pytest.fixture(
    params=[each for each in DRIVERS if not each.name.startswith("sqlite")],
    ids=lambda each: f"{each.name}{'-async' * each.is_async}",
)
def in_session(
    request: pytest.FixtureRequest,
) -> Callable[[Callable[[HandlerSession], None]], None]:
    """Give what runs a block with a handler's session on an engine of one driver."""
    driver: Driver = request.param
    try:
        importlib.import_module(driver.module)
    except ImportError:
        pytest.skip(f"{driver.module} is not installed")
    kind = "postgres_url" if driver.name.startswith("postgresql") else "mysql_url"
    url = make_url(request.getfixturevalue(kind)).set(drivername=driver.name)

    def run(block: Callable[[HandlerSession], None]) -> None:
        engine = create_engine(url)
        hold_transactions_of(engine)
        with HandlerSession(engine) as session:
            block(session)
        engine.dispose()

    async def run_async(block: Callable[[Any], None]) -> None:
        engine = create_async_engine(url)
        hold_transactions_of(engine.sync_engine)
        async with AsyncSession(engine, sync_session_class=HandlerSession) as session:
            await session.run_sync(block)
        await engine.dispose()

    return (lambda block: asyncio.run(run_async(block))) if driver.is_async else run


def test_a_session_tells_an_end_from_what_leaves_its_transaction_open(
    in_session: Callable[[Callable[[HandlerSession], None]], None],
) -> None:
    def block(session: HandlerSession) -> None:
        family = "postgresql" if session.get_bind().dialect.name == "postgresql" else "mysql"
        session.execute(text("SELECT 1"))
        with session.held():
            session.connection().exec_driver_sql(KEEPS[family])
            assert session.is_in_doubt
            session.check_transaction(undo=False)
            assert not session.is_in_doubt
            session.execute(text("SELECT 1"))
        with suppress(UsageError), session.held():
            session.connection().exec_driver_sql(ENDS[family])
            with pytest.raises(TransactionEnded):
                session.execute(text("SELECT 1"))
            with pytest.raises(TransactionEnded):
                session.check_transaction(undo=False)
        session.rollback()

    in_session(block)
