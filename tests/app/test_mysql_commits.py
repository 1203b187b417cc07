"""What ends a transaction on MySQL and MariaDB is refused in a handler, wherever it stands."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, Ledger, Life, delivery, write_effect

from reliable_mq.database.sql_handler_session import ends_on_mysql
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Retry


def assert_refused(mysql_url: str, handler: Callable[..., Any]) -> None:
    """Have a message handled, and see that its attempt failed and left no effect."""
    ledger = Ledger(mysql_url)
    ledger.create(A)

    async def scenario() -> None:
        async with Life(mysql_url, None, handler=handler, max_attempts=9, lease=LONG) as life:
            (outcome,) = await life.handle(delivery(A))
            assert isinstance(outcome, Retry)

    asyncio.run(scenario())

    assert ledger.effects() == []
    assert ledger.logs() == {("payments", A): (0, 1)}
    ledger.database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE more (id INTEGER)",
        "  alter table effects add column more INTEGER",
        "/* tidy up */ TRUNCATE TABLE effects",
        "-- tidy up\nDROP TABLE effects",
        "LOCK TABLES effects WRITE",
        "BEGIN",
        "START TRANSACTION",
        "SET autocommit = 1",
        "SET @@session.autocommit=1",
        "COMMIT",
        "ROLLBACK",
    ],
)
def test_a_handler_may_not_execute_what_mysql_commits_before(
    mysql_url: str, statement: str
) -> None:
    def handler(session: Session, message: ReceivedMessage) -> None:
        write_effect(session, message)
        session.execute(text(statement))

    assert_refused(mysql_url, handler)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TEMPORARY TABLE mine (id INTEGER)",
        "DROP TEMPORARY TABLE mine",
        "ROLLBACK TO SAVEPOINT sa_savepoint_1",
        "SELECT 1",
        "SET NAMES utf8mb4",
        "INSERT INTO started VALUES (1)",
        "UPDATE begins SET checked = 1",
        "SELECT 1; SELECT 2",
        r"""UPDATE a SET b = 'it\'s; COMMIT', c = "; COMMIT" -- ; COMMIT""",
        "SELECT `; COMMIT` /* ; COMMIT */ FROM a # ; COMMIT",
    ],
)
def test_what_mysql_does_not_commit_before_is_allowed(statement: str) -> None:
    assert not ends_on_mysql(statement)


@pytest.mark.parametrize(
    "later", ["COMMIT", "/* so */ TRUNCATE nothing", "/*! */ SELECT 2; COMMIT"]
)
def test_an_async_handler_may_not_commit_behind_another_statement(
    mysql_url: str, later: str
) -> None:
    """Given aiomysql, which sends several statements at once, the effect would be there twice."""

    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        effect = f"INSERT INTO effects VALUES ('{message.message_id}'); {later}"
        await session.execute(text(effect))

    assert_refused(mysql_url, handler)
